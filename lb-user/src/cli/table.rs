//! Tables for people, all in one place.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use lb_common::decap::{Counter, Fate};

use crate::control::api::{
    BackendPhase, BackendView, Flows, ServicePhase, ServiceView, Status, Way,
};

/// A table with these columns; those whose name starts with `>` are numbers, aligned right.
fn table(columns: &[&str], rows: Vec<Vec<String>>) -> String {
    let right = |at: usize| columns[at].starts_with('>');
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    let aligned = |at: usize, text: &str| {
        let cell = Cell::new(text);
        if right(at) {
            cell.set_alignment(CellAlignment::Right)
        } else {
            cell
        }
    };
    let header = columns.iter().enumerate();
    table.set_header(header.map(|(at, name)| aligned(at, name.trim_start_matches('>'))));
    for row in rows {
        table.add_row(row.iter().enumerate().map(|(at, text)| aligned(at, text)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.to_string();
    let lines: Vec<&str> = lines.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Services, a line each.
pub fn services(services: &[ServiceView]) -> String {
    if services.is_empty() {
        return "no services; add one with `lb service add`".to_owned();
    }
    let rows = services.iter().map(|s| {
        let takers = s.backends.iter().filter(|b| b.state == BackendPhase::Up);
        vec![
            s.id().to_string(),
            match s.state {
                ServicePhase::Up => "up".to_owned(),
                ServicePhase::Removing => "removing".to_owned(),
            },
            s.mode.to_string(),
            s.draw.to_string(),
            s.choices.to_string(),
            s.load_view.to_string(),
            format!("{}/{}", takers.count(), s.backends.len()),
            s.in_flight.to_string(),
            s.opened.to_string(),
        ]
    });
    table(
        &[
            "SERVICE",
            "STATE",
            "MODE",
            "DRAW",
            ">CHOICES",
            "VIEW",
            ">BACKENDS",
            ">IN-FLIGHT",
            ">OPENED",
        ],
        rows.collect(),
    )
}

/// Backends of services, a line each.
pub fn backends(services: &[ServiceView]) -> String {
    let rows: Vec<_> = services
        .iter()
        .flat_map(|s| s.backends.iter().map(|b| backend_row(s, b)))
        .collect();
    if rows.is_empty() {
        return "no backends; add one with `lb backend add`".to_owned();
    }
    table(
        &[
            "SERVICE",
            "BACKEND",
            "STATE",
            ">WEIGHT",
            ">IN-FLIGHT",
            ">OPENED",
            ">SHARE",
            ">IN",
            ">OUT",
            "NEXT HOP",
        ],
        rows,
    )
}

fn backend_row(service: &ServiceView, backend: &BackendView) -> Vec<String> {
    let state = match (backend.state, backend.deadline_ms) {
        (BackendPhase::Removing, Some(left)) => format!("removing, {} left", duration_ms(left)),
        (BackendPhase::Removing, None) => "removing".to_owned(),
        (BackendPhase::Drain, _) => "drain".to_owned(),
        (BackendPhase::Up, _) => "up".to_owned(),
    };
    vec![
        service.id().to_string(),
        backend.address.to_string(),
        state,
        backend.weight.to_string(),
        backend.load.in_flight.to_string(),
        backend.load.opened.to_string(),
        format!("{:.1}%", backend.share * 100.0),
        bytes(backend.load.bytes_in),
        bytes(backend.load.bytes_out),
        next_hop(&backend.way),
    ]
}

fn next_hop(way: &Way) -> String {
    match (&way.next_hop, &way.unresolved) {
        (Some(hop), _) => {
            let vlans: String = hop.vlans.iter().map(|id| format!(" vlan {id}")).collect();
            format!("{}{vlans} {}", hop.interface, hop.mac)
        }
        (None, Some(why)) => format!("asks the kernel: {why}"),
        (None, None) => "asks the kernel".to_owned(),
    }
}

/// Everything about the agent.
pub fn status(status: &Status) -> String {
    let mut out = String::new();
    let program = &status.program;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "lb {}, process {}, up {}\nprogram {} (id {}), {} of machine code{}\n",
        status.version,
        status.pid,
        duration_ms(status.uptime_ms / 1000 * 1000),
        program.name,
        program.id,
        bytes(program.jited_bytes),
        program
            .verified_instructions
            .map_or_else(String::new, |n| format!(", {n} instructions verified")),
    );
    let rows = status.attachments.iter().map(|a| {
        vec![
            a.interface.clone(),
            a.ifindex.to_string(),
            a.mode.clone(),
            a.note.clone().unwrap_or_default(),
        ]
    });
    section(
        &mut out,
        &table(&["INTERFACE", ">INDEX", "XDP MODE", "NOTE"], rows.collect()),
    );

    let rows = status.flow_tables.iter().map(|t| {
        let full = t.entries as f64 / (t.limit.max(1)) as f64 * 100.0;
        vec![
            t.family.clone(),
            t.entries.to_string(),
            t.limit.to_string(),
            format!("{full:.1}%"),
        ]
    });
    section(
        &mut out,
        &table(
            &["FLOW TABLE", ">ENTRIES", ">LIMIT", ">FULL"],
            rows.collect(),
        ),
    );

    let total: u64 = status.maps.iter().map(|m| m.bytes).sum();
    let mut rows: Vec<_> = status
        .maps
        .iter()
        .map(|m| {
            vec![
                m.name.clone(),
                m.max_entries.to_string(),
                m.key_bytes.to_string(),
                m.value_bytes.to_string(),
                bytes(m.bytes),
            ]
        })
        .collect();
    rows.push(vec![
        "all".to_owned(),
        String::new(),
        String::new(),
        String::new(),
        bytes(total),
    ]);
    section(
        &mut out,
        &table(&["MAP", ">ENTRIES", ">KEY", ">VALUE", ">MEMORY"], rows),
    );

    section(&mut out, &services(&status.services));
    if status.services.iter().any(|s| !s.backends.is_empty()) {
        section(&mut out, &backends(&status.services));
    }
    let rows: Vec<_> = status
        .counters
        .iter()
        .filter(|c| c.value > 0)
        .map(|c| {
            let kind = if c.drop { "dropped" } else { "event" };
            vec![
                c.name.clone(),
                kind.to_owned(),
                c.value.to_string(),
                c.text.clone(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        section(
            &mut out,
            &table(&["COUNTER", "KIND", ">PACKETS", "MEANING"], rows),
        );
    }
    for note in &status.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn section(out: &mut String, text: &str) {
    out.push_str(text);
    out.push_str("\n\n");
}

/// Flows, a line each.
pub fn flows(flows: &Flows) -> String {
    if flows.flows.is_empty() {
        return "no flows".to_owned();
    }
    let rows = flows.flows.iter().map(|f| {
        vec![
            f.protocol.to_string(),
            f.client.to_string(),
            f.vip.to_string(),
            f.backend
                .map_or_else(|| "-".to_owned(), |backend| backend.to_string()),
            f.state.clone(),
            duration_ms(f.idle_ms),
        ]
    });
    let mut out = table(
        &["PROTO", "CLIENT", "VIP", "BACKEND", "STATE", ">IDLE"],
        rows.collect(),
    );
    if flows.more {
        out += "\nthere are more; see --limit";
    }
    out
}

/// What a decapsulator has counted: every kind of tunnel, and what else there was.
pub fn decap(counters: &[(Counter, u64)]) -> String {
    let rows = counters
        .iter()
        .filter(|(counter, packets)| *packets > 0 || counter.fate() == Fate::Decapsulated)
        .map(|(counter, packets)| {
            vec![
                counter.name().to_owned(),
                crate::decap::fate_name(counter.fate()).to_owned(),
                packets.to_string(),
                counter.text().to_owned(),
            ]
        });
    table(&["COUNTER", "KIND", ">PACKETS", "MEANING"], rows.collect())
}

/// A time in its two largest units.
pub fn duration_ms(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..10 if !ms.is_multiple_of(1000) => format!("{seconds}.{}s", ms % 1000 / 100),
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// A size in the unit that fits.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::NextHop;

    #[test]
    fn sizes_and_times() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(duration_ms(1500), "1.5s");
        assert_eq!(duration_ms(60_000), "1m00s");
        assert_eq!(duration_ms(3_700_000), "1h01m");
        assert_eq!(duration_ms(90_000_000), "1d01h");
    }

    #[test]
    fn next_hops() {
        let hop = NextHop {
            interface: "eth0".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            vlans: Vec::new(),
        };
        let by = |vlans: &[u16]| Way {
            next_hop: Some(NextHop {
                vlans: vlans.to_vec(),
                ..hop.clone()
            }),
            ..Way::default()
        };
        assert_eq!(next_hop(&by(&[])), "eth0 02:00:00:00:00:01");
        let two = "eth0 vlan 100 vlan 200 02:00:00:00:00:01";
        assert_eq!(next_hop(&by(&[100, 200])), two);
        let none = Way {
            unresolved: Some("no route".to_owned()),
            ..Way::default()
        };
        assert_eq!(next_hop(&none), "asks the kernel: no route");
        assert_eq!(next_hop(&Way::default()), "asks the kernel");
    }

    #[test]
    fn numbers_stand_to_the_right() {
        let rows = vec![
            vec!["a".into(), "5".into()],
            vec!["bbb".into(), "100".into()],
        ];
        assert_eq!(
            table(&["NAME", ">N"], rows),
            "NAME    N\na       5\nbbb   100"
        );
    }
}
