//! Echo requests to a VIP, and errors about packets of flows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::verdict::Counter::{
    AskedFib, EchoReply, IcmpError, NoNeighbour, NoRoute, TtlExpired,
};
use lb_tests::fixture::{
    ALL, Fixture, Frame, Message, Place, Port, Scene, Setup, Step, TCP, V4, V6, event,
    frame::{ACK, ETHERNET, SYN, patched},
    no_flow, one_open,
    run::{DROP, PASS, REDIRECT, TX},
    scene::ONE,
};
use lb_user::model::{addr::address_words, change::MapWrite};

const FAR: Setup = Setup {
    backends: &[Place::Far],
    ..ONE
};
const SILENT: Setup = Setup {
    backends: &[Place::Silent],
    ..ONE
};
const UNREACHABLE: Setup = Setup {
    backends: &[Place::Unreachable],
    ..ONE
};
const TWO_VIPS: Setup = Setup {
    second_vip: true,
    stateless: false,
    ..ONE
};
/// Lengths of quoted TCP and UDP: the least, around a TCP checksum, odd, all.
const LENGTHS: [usize; 8] = [8, 9, 16, 18, 19, 20, 21, 1500];
const DATA: &[u8] = b"what the packet carries";

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "echo",
        says: "an echo request to a VIP is answered, whatever it carries",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let pattern: Vec<u8> = (0..1400).map(|i| (i * 7) as u8).collect();
            let mut steps: Vec<_> = [0, 1, 2, 3, 17, 18, 56, 999, 1400]
                .map(|len| answered(s, &s.ping(0x1234, 1, &pattern[..len])))
                .into();
            for id in [1, 0x00ff, 0x7fff, 0x8000, 0xffff] {
                for sequence in [0, 1, 0xff00, 0xfffe, 0xffff] {
                    steps.push(answered(s, &s.ping(id, sequence, DATA)));
                }
            }
            steps
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "echo_of_zeros",
        says: "id, sequence and data of zeros only: the one sum that is +0",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            [0, 1, 2, 55, 56]
                .map(|len| answered(s, &s.ping(0, 0, &vec![0; len])))
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "echo_ttl",
        says: "a reply has a TTL of its own; the request has arrived, with whatever it had",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            [0, 1, 2, 63, 128, 255]
                .map(|ttl| answered(s, &s.ping(7, 1, DATA).ttl(ttl)))
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "echo_padded",
        says: "padding behind a request goes back with it",
        kinds: TCP,
        setup: ONE,
        steps: |s| vec![answered(s, &s.ping(7, 1, b"x")).padded(&[0xee; 17])],
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "echo_of_every_vip",
        says: "every VIP answers, on every interface, in a flow and without one",
        kinds: ALL,
        setup: TWO_VIPS,
        steps: |s| {
            let mut steps = s.establish(0);
            let other = s.ping(7, 1, DATA).to(s.vip2().ip());
            steps.push(answered(s, &s.ping(7, 1, DATA)));
            steps.push(answered(s, &other));
            let input = other.bytes();
            steps.push(
                Step::passing(input, Port::Far)
                    .becoming(TX, s.pong(&other).bytes())
                    .counting(EchoReply),
            );
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "echo_for_others",
        says: "requests to any other address pass: the host's, a backend's, a stranger's",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            [
                s.host(),
                s.backend(0),
                s.stranger(),
                s.elsewhere(),
                s.client(),
            ]
            .map(|to| s.message(&s.ping(7, 1, DATA).to(to.ip()), Port::Near))
            .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "echo_of_a_former_vip",
        says: "an address that is no VIP any more",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            vec![
                answered(s, &s.ping(7, 1, DATA)),
                event(|rig| {
                    let addr = address_words(rig.scene.vip().ip());
                    Ok(rig.dataplane.write(&[MapWrite::RemoveVip { addr }])?)
                }),
                s.message(&s.ping(7, 2, DATA), Port::Near),
            ]
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "echo_from_nobody",
        says: "requests from a group, a broadcast or no address, or sent to a group of stations",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            let mut steps: Vec<_> = nobody(s)
                .into_iter()
                .map(|source| {
                    let ping = s.ping(7, 1, DATA);
                    s.message(&Message { source, ..ping }, Port::Near)
                })
                .collect();
            for destination_mac in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
                let ping = s.ping(7, 1, DATA);
                let ping = Message {
                    destination_mac,
                    ..ping
                };
                steps.push(s.message(&ping, Port::Near));
            }
            steps
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "other_messages",
        says: "codes of echo that are not known, and all that is neither echo request nor error",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            let ping = s.ping(7, 1, DATA);
            let (errors, echo) = match s.kind.is_v4() {
                true => (&[3, 11, 12][..], 8),
                false => (&[1, 2, 3, 4][..], 128),
            };
            let mut steps = vec![s.message(
                &Message {
                    code: 1,
                    ..ping.clone()
                },
                Port::Near,
            )];
            for kind in (0..=255).filter(|kind| *kind != echo && !errors.contains(kind)) {
                let other = Message {
                    kind,
                    ..ping.clone()
                };
                steps.push(s.message(&other, Port::Near));
            }
            steps
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "echo_cut_short",
        says: "a request whose frame is shorter than its IP header says, or that has no whole header",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            let bytes = s.ping(7, 1, DATA).bytes();
            let mut steps: Vec<_> = (ETHERNET..bytes.len())
                .map(|len| Step::passing(bytes[..len].to_vec(), Port::Near))
                .collect();
            for len in 0..8 {
                steps.push(Step::passing(
                    with_message_length(s, &bytes, len),
                    Port::Near,
                ));
            }
            steps
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "echo_in_fragments",
        says: "fragments of a request pass, and so do requests with options",
        kinds: V4,
        setup: ONE,
        steps: |s| {
            let bytes = s.ping(7, 1, DATA).bytes();
            let mut steps: Vec<_> = [[0x20, 0x00], [0x20, 0x10], [0x00, 0x10]]
                .map(|word: [u8; 2]| {
                    Step::passing(patched(&bytes, ETHERNET + 6, &word), Port::Near)
                })
                .into();
            steps.push(Step::passing(
                patched(&bytes, ETHERNET, &[0x46]),
                Port::Near,
            ));
            steps
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "to_backend",
        says: "every error to a VIP reaches the backend whose packet it quotes, MTU and all",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            for error in s.errors() {
                for len in LENGTHS {
                    let about = s.reply(0, ACK).payload(DATA).ttl(63);
                    steps.push(passed_on(s.error_to_backend(error, 0, &about, len)));
                }
            }
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "to_far_backend",
        says: "behind another interface",
        kinds: ALL,
        setup: FAR,
        steps: |s| {
            let mut steps = s.establish(0);
            let about = s.reply(0, ACK).payload(DATA);
            let [input, out] = s.error_to_backend(s.too_big(), 0, &about, 8);
            steps.push(passed_on([input, out]).redirected());
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "from_backend",
        says: "every error of a backend reaches the client whose packet it quotes, as from the VIP",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let sources = [s.backend(0).ip(), s.vip().ip()];
            for error in s.errors() {
                for len in LENGTHS {
                    let about = s.request(ACK).payload(DATA).ttl(63);
                    steps.push(passed_on(s.error_to_client(error, sources, &about, len)));
                }
            }
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "half_a_checksum",
        says: "a quote that ends within the TCP checksum: half of it cannot be brought up to date",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let [input, mut out] = s.error_to_backend(s.too_big(), 0, &s.reply(0, ACK), 17);
            let last = input.data.len() - 1;
            out.data[last] = input.data[last];
            steps.push(passed_on([input, out]));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "from_router",
        says: "an error of a router before a backend keeps its source",
        kinds: ALL,
        setup: FAR,
        steps: |s| {
            let mut steps = s.establish(0);
            let sources = [s.elsewhere().ip(); 2];
            for len in LENGTHS {
                let about = s.request(ACK).payload(DATA);
                let [input, out] = s.error_to_client(s.too_big(), sources, &about, len);
                steps.push(
                    Step::passing(input.bytes(), Port::Far)
                        .becoming(REDIRECT, out.bytes())
                        .counting(IcmpError),
                );
            }
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "quoted_without_checksum",
        says: "a quoted UDP checksum of none stays none",
        kinds: &[lb_tests::fixture::Kind::Udp4],
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let about = s.reply(0, 0).payload(DATA).without_checksum();
            steps.push(passed_on(s.error_to_backend(s.too_big(), 0, &about, 8)));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "error_ttl",
        says: "a TTL or hop limit of 0 or 1 ends here, of 2 leaves as 1",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let about = s.reply(0, ACK);
            let [input, out] = s.error_to_backend(s.too_big(), 0, &about, 8);
            for ttl in [0, 1] {
                let bytes = input.clone().ttl(ttl).bytes();
                steps.push(
                    s.message(&input.clone().ttl(ttl), Port::Near)
                        .becoming(DROP, bytes)
                        .counting(TtlExpired),
                );
            }
            steps.push(passed_on([input.ttl(2), out.ttl(1)]));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "error_padded",
        says: "padding behind an error is not taken for the quoted TCP checksum",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let about = s.reply(0, ACK).payload(DATA);
            let messages = s.error_to_backend(s.too_big(), 0, &about, 8);
            steps.push(passed_on(messages).padded(&[0xee; 32]));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "error_about_no_flow",
        says: "errors about unknown flows pass: another client, port, protocol, address, no flow at all",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let pass = |about: &Frame| {
                let error = s.error(s.too_big(), s.elsewhere().ip(), about, 20);
                s.message(&error, Port::Near)
            };
            let reply = s.reply(0, ACK).from(s.vip());
            let mut steps = vec![pass(&reply)];
            steps.extend(s.establish(0));
            let mut client = reply.clone();
            client.destination.set_port(40_001);
            let mut port = reply.clone();
            port.source.set_port(81);
            let other = reply.clone().to(s.elsewhere());
            let stranger = reply.clone().from(s.stranger());
            steps.extend([client, port, other, stranger].iter().map(pass));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "error_to_another",
        says: "an error that was not sent to the sender of the quoted packet",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let about = s.reply(0, ACK).from(s.vip());
            let error = s.error(s.too_big(), s.elsewhere().ip(), &about, 8);
            for to in [s.host(), s.client(), s.backend(0), s.vip2()] {
                steps.push(s.message(&error.clone().to(to.ip()), Port::Near));
            }
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "quote_cut_short",
        says: "an error that quotes less than 8 bytes of TCP or UDP, or is cut short",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let about = s.reply(0, ACK).from(s.vip());
            for len in 0..8 {
                let error = s.error(s.too_big(), s.elsewhere().ip(), &about, len);
                steps.push(s.message(&error, Port::Near));
                // Whatever may lie behind it in the frame.
                steps.push(s.message(&error, Port::Near).padded(&[0x3f; 40]));
            }
            let whole = s.error(s.too_big(), s.elsewhere().ip(), &about, 20).bytes();
            for len in ETHERNET..whole.len() {
                steps.push(Step::passing(whole[..len].to_vec(), Port::Near));
            }
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "quoted_fragment",
        says: "a quoted first fragment tells its flow; a later one, or one with options, does not",
        kinds: V4,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let about = s.reply(0, ACK).payload(DATA);
            let quoting = |change: &dyn Fn(&mut Vec<u8>)| {
                s.error_to_backend(s.too_big(), 0, &about, 20)
                    .map(|mut message| {
                        change(&mut message.data);
                        message
                    })
            };
            // The quoted header checksum is then as wrong before as after, by as much.
            steps.push(passed_on(quoting(&|ip| {
                ip[6..8].copy_from_slice(&[0x20, 0])
            })));
            for later in [[0x20, 1], [0, 1], [0x1f, 0xff]] {
                let [input, _] = quoting(&|ip| ip[6..8].copy_from_slice(&later));
                steps.push(s.message(&input, Port::Near));
            }
            let [input, _] = quoting(&|ip| ip[0] = 0x46);
            steps.push(s.message(&input, Port::Near));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "quoted_extensions",
        says: "what quotes an IPv6 extension header, or another protocol, passes",
        kinds: V6,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            for next in [0, 43, 44, 60, 58, 1, 50] {
                let [mut input, _] = s.error_to_backend(s.too_big(), 0, &s.reply(0, ACK), 20);
                input.data[6] = next;
                steps.push(s.message(&input, Port::Near));
            }
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "stale",
        says: "the backend is gone: nobody is left to tell",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let [input, _] = s.error_to_backend(s.too_big(), 0, &s.reply(0, ACK), 8);
            steps.push(event(|rig| rig.replace(0)));
            steps.push(s.message(&input, Port::Near));
            steps
        },
        flows: 1,
        loads: no_flow,
    },
    Fixture {
        name: "by_the_stack",
        says: "next hop not known: rewritten, and up the stack, which takes one from the TTL",
        kinds: ALL,
        setup: SILENT,
        steps: |s| {
            let [input, out] = s.error_to_backend(s.too_big(), 0, &s.reply(0, ACK), 20);
            let out = Message {
                source_mac: input.source_mac,
                destination_mac: input.destination_mac,
                ttl: input.ttl,
                ..out
            };
            vec![
                s.send(s.request(SYN))
                    .to_stack_for(0)
                    .counting(AskedFib)
                    .counting(NoNeighbour),
                s.message(&input, Port::Near)
                    .becoming(PASS, out.bytes())
                    .counting(IcmpError)
                    .counting(AskedFib)
                    .counting(NoNeighbour),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "no_route",
        says: "no route to the backend",
        kinds: ALL,
        setup: UNREACHABLE,
        steps: |s| {
            let [input, _] = s.error_to_backend(s.too_big(), 0, &s.reply(0, ACK), 20);
            let bytes = input.bytes();
            vec![
                s.send(s.request(SYN))
                    .drops(NoRoute)
                    .counting(AskedFib)
                    .charged(0, lb_tests::fixture::Side::In),
                s.message(&input, Port::Near)
                    .becoming(DROP, bytes)
                    .counting(AskedFib)
                    .counting(NoRoute),
            ]
        },
        flows: 1,
        loads: one_open,
    },
];

/// A step in which a VIP answers.
fn answered(s: &Scene, ping: &Message) -> Step {
    s.message(ping, Port::Near)
        .becoming(TX, s.pong(ping).bytes())
        .counting(EchoReply)
}

/// A step in which an error comes in on the clients' interface and leaves there as another.
fn passed_on([input, out]: [Message; 2]) -> Step {
    Step::passing(input.bytes(), Port::Near)
        .becoming(TX, out.bytes())
        .counting(IcmpError)
}

/// Addresses that no single host can have.
fn nobody(s: &Scene) -> Vec<IpAddr> {
    if s.kind.is_v4() {
        [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]]
            .map(|octets| Ipv4Addr::from(octets).into())
            .into()
    } else {
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, group]
            .map(IpAddr::V6)
            .into()
    }
}

/// A frame whose IP header says that the message has `len` bytes.
fn with_message_length(s: &Scene, bytes: &[u8], len: u16) -> Vec<u8> {
    let (at, length) = match s.kind.is_v4() {
        true => (16, len + 20),
        false => (18, len),
    };
    patched(bytes, at, &length.to_be_bytes())
}
