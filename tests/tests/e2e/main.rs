//! `lb` as a whole: the real binary, XDP programs on veth, real TCP and UDP through network
//! namespaces, and the command line against the socket.

mod bad_config;
mod changes;
mod decap;
mod hairpin;
mod hops;
mod icmp;
mod lifecycle;
mod one_way;
mod passed;
mod traffic;

use lb_tests::harness;

fn main() {
    harness::run(&[
        ("download_of_100_mb_is_whole", traffic::download_is_whole),
        (
            "a_thousand_parallel_connections",
            traffic::a_thousand_parallel,
        ),
        ("udp_echo", traffic::udp_echo),
        ("every_shape_of_network", traffic::every_shape),
        ("a_device_without_redirects", traffic::no_redirects),
        ("two_choices_spread_2000_over_20", traffic::spread),
        ("a_port_used_again_at_once", traffic::same_port),
        ("flows_are_listed", traffic::flows_are_listed),
        ("backend_added_under_traffic", changes::added),
        ("backend_drained_under_traffic", changes::drained),
        ("backend_removed_under_traffic", changes::removed),
        ("weight_zero_drains", changes::weight_zero),
        ("service_added_and_removed", changes::service_comes_and_goes),
        ("service_without_backends", changes::no_backends),
        ("repeated_changes_are_no_errors", changes::repeated),
        ("refused_changes_change_nothing", changes::refused),
        ("second_agent_on_a_socket", lifecycle::second_agent),
        ("stale_socket_is_taken_over", lifecycle::stale_socket),
        ("garbage_on_the_socket", lifecycle::garbage),
        ("sigterm_detaches", lifecycle::sigterm),
        ("sigkill_detaches", lifecycle::sigkill),
        ("interface_with_another_program", lifecycle::taken_interface),
        ("unknown_interface", lifecycle::unknown_interface),
        ("mtu_too_big_for_native_mode", lifecycle::big_mtu),
        ("generic_mode", lifecycle::generic_mode),
        ("no_privileges", lifecycle::no_privileges),
        ("no_agent_on_the_socket", lifecycle::no_agent),
        ("bad_configs", bad_config::each_is_refused),
        ("traffic_not_for_a_vip", passed::to_the_balancer),
        ("traffic_through_the_balancer", passed::through_the_balancer),
        ("other_ports_of_a_vip", passed::other_ports),
        ("pings_of_a_vip", icmp::pings),
        ("path_mtu_behind_the_client", icmp::path_mtu),
        ("refused_datagrams_are_refused", icmp::unreachable_port),
        ("hops_two_interfaces", hops::two_interfaces),
        ("hops_gateways", hops::gateways),
        ("hops_link_down", hops::link_down),
        ("hops_mtu", hops::mtu),
        ("hops_changed_mac_announced", hops::announced_mac),
        ("hops_changed_mac_unannounced", hops::silent_mac),
        ("hops_neighbour_that_does_not_answer", hops::unanswered),
        ("hops_far_end_of_veth", hops::far_end_of_veth),
        ("hops_address_of_the_balancer", hops::own_address),
        (
            "hairpin_client_on_the_backends_network",
            hairpin::client_on_the_backends_network,
        ),
        (
            "hairpin_backend_that_is_a_client",
            hairpin::backend_as_client,
        ),
        ("one_way_dsr", one_way::dsr),
        ("one_way_ipip_of_every_mix", one_way::ipip),
        ("one_way_gue_to_another_port", one_way::gue),
        ("one_way_on_the_balancer_itself", one_way::balancer_itself),
        ("one_way_after_a_change_of_mode", one_way::change_of_mode),
        ("one_way_refusals", one_way::refusals),
        ("decap_every_tunnel", decap::every_tunnel),
        ("decap_in_generic_mode", decap::generic_mode),
        ("decap_refused_packets", decap::refused_packets),
        ("decap_jumbo_frames", decap::jumbo_frames),
        ("decap_follows_addresses", decap::addresses_followed),
        ("decap_given_addresses", decap::given_addresses),
        ("decap_ends_by_signals", decap::signals),
        ("decap_interface_taken_or_unknown", decap::taken_interface),
        ("decap_notes", decap::notes),
        ("decap_wrong_usage", decap::wrong_usage),
    ])
    .exit()
}
