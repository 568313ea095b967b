//! Switches and cables of a network: fat tree, rail-optimised, rail-only, dragonfly.

use forebay_core::Result;

use crate::field::{choice, request};
use crate::quantity::{BytesPerSecond, Count, Factor, lit};
use crate::report::Report;
use crate::sheet::{Num, Sheet, ceil, wrong};
use crate::source;

choice! {
    /// Shape of the network.
    Topology {
        /// Two or three tiers of switches.
        FatTree = "fat-tree",
        /// Adapter i of every node on the switches of rail i, rails joined by spines.
        Rail = "rail",
        /// The same without spines: traffic between rails goes through the nodes.
        RailOnly = "rail-only",
        /// Groups of switches, all joined to all.
        Dragonfly = "dragonfly",
    }
}

request! {
    /// What to ask about the network's shape.
    Request {
        /// Network adapters to connect; usually one per GPU.
        endpoints: Count = lit(1024.0),
        /// Ports of a switch; 64 at 400 Gb/s.
        radix: Count = lit(64.0),
        /// Rate of a port.
        link: BytesPerSecond = lit(50e9),
        /// Shape of the network.
        topology: Topology = Topology::FatTree,
        /// Ports down per port up at the first switches; 1 does not block. Not for a dragonfly.
        oversubscription: Factor = lit(1.0),
        /// Rails: adapters of a node.
        rails: Count = lit(8.0),
    }
}

/// Ports down and up at a leaf.
fn split(radix: f64, oversubscription: f64) -> [f64; 2] {
    // The last bits of the division must not cost a port.
    let down = (radix * oversubscription / (1.0 + oversubscription) + 1e-9).floor();
    let down = down.clamp(1.0, radix - 1.0);
    [down, radix - down]
}

/// Ports up of leaves that so many adapters fill one after the other; the last leaf needs ports for its own only.
fn uplinks(adapters: f64, [down, up]: [f64; 2]) -> f64 {
    let full = (adapters / down).floor();
    full * up + ceil((adapters - full * down) * up / down)
}

/// What the figures of a topology are computed from.
#[derive(Debug, Clone, Copy)]
struct Given {
    endpoints: Num,
    radix: Num,
    link: Num,
    wish: Num,
    rails: Num,
    from: &'static str,
}

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("fabric");
    let endpoints = sheet.given("endpoints", request.endpoints).whole()?;
    let radix = sheet.given("radix", request.radix).whole()?;
    let link = sheet.given("link", request.link).positive()?;
    let wish = sheet
        .given("oversubscription", request.oversubscription)
        .positive()?;
    if radix.v < 2.0 {
        return Err(wrong(
            "a switch with one port joins nothing",
            "give radix 32, 40, 64 or 128",
        ));
    }
    if wish.v < 1.0 {
        let hint = "give 1 for a network that does not block, 2 for two ports down per port up";
        return Err(wrong(format!("oversubscription is {}, below 1", wish.v), hint));
    }
    let rails = sheet.given("rails", request.rails).whole()?;
    let given = Given {
        endpoints,
        radix,
        link,
        wish,
        rails,
        from: match request.topology {
            Topology::FatTree => source::FAT_TREE,
            Topology::Rail | Topology::RailOnly => source::RAIL,
            Topology::Dragonfly => source::DRAGONFLY,
        },
    };
    match request.topology {
        Topology::Dragonfly => dragonfly(&mut sheet, given)?,
        topology => tree(&mut sheet, topology, given)?,
    }
    Ok(sheet.finish())
}

/// Fat tree, rail-optimised, rail-only: leaves, spines, and switches between them when the spines have too few ports.
fn tree(sheet: &mut Sheet, topology: Topology, given: Given) -> Result<()> {
    let Given {
        endpoints,
        radix,
        rails,
        from,
        ..
    } = given;
    sheet.group("switches");
    let is_rail = topology != Topology::FatTree;
    // Leaves of a rail have adapters of that rail only.
    let (adapters, copies) = if is_rail {
        let value = ceil(endpoints.v / rails.v);
        let formula = "ceil(endpoints / rails)";
        let inputs = [endpoints, rails];
        let nodes = sheet.from(from).count("nodes", value, formula, &inputs)?;
        (nodes, rails.v)
    } else {
        (endpoints, 1.0)
    };
    let alone = adapters.v <= radix.v && topology != Topology::Rail;
    if alone {
        return single(sheet, topology, given, copies);
    }
    let [down, up] = ports(sheet, given)?;
    let per_leaf = [down.v, up.v];
    let leaves = copies * ceil(adapters.v / down.v);
    let times = if is_rail { "rails x " } else { "" };
    let name = adapters.name;
    let formula = format!("{times}ceil({name} / ports_down)");
    let mut inputs = vec![adapters, down];
    inputs.extend(is_rail.then_some(rails));
    let leaves = sheet.from(from).count("leaves", leaves, &formula, &inputs)?;
    inputs.push(up);
    let value = copies * uplinks(adapters.v, per_leaf);
    let formula = format!(
        "{times}(floor({name} / ports_down) x ports_up \
         + ceil(({name} - floor({name} / ports_down) x ports_down) x ports_up / ports_down))"
    );
    let links = sheet.from(from).count("uplinks", value, &formula, &inputs)?;
    // Rails that are not joined are networks of their own.
    let networks = if topology == Topology::RailOnly {
        copies
    } else {
        1.0
    };
    let [middles, spines, cables] = upper(sheet, given, leaves, links, networks, down)?;
    let value = leaves.v + middles.v + spines.v;
    let formula = "leaves + middles + spines";
    let inputs = [leaves, middles, spines];
    sheet.from(from).count("switches", value, formula, &inputs)?;
    cabling(sheet, given, cables)?;
    let real = down.v / up.v;
    sheet.group("rate");
    let formula = "ports_down / ports_up: in whole ports";
    let real = sheet
        .from(from)
        .factor("oversubscription_real", real, formula, &[down, up])?;
    bisection(sheet, topology, given, real)?;
    if endpoints.v <= radix.v {
        let message = format!("one switch with {} ports would join all {}", radix.v, endpoints.v);
        sheet.warn("leaves", message);
    }
    Ok(())
}

/// Ports down and up at a leaf.
fn ports(sheet: &mut Sheet, given: Given) -> Result<[Num; 2]> {
    let Given {
        radix, wish, from, ..
    } = given;
    let [down, up] = split(radix.v, wish.v);
    let formula = "max(1, min(radix - 1, floor(radix x oversubscription / (1 + oversubscription))))";
    let inputs = [radix, wish];
    let down = sheet.from(from).count("ports_down", down, formula, &inputs)?;
    let formula = "radix - ports_down";
    let up = sheet.from(from).count("ports_up", up, formula, &[radix, down])?;
    Ok([down, up])
}

/// Switches above the leaves, of each of so many equal networks: those in the middle, spines, and all cables between switches.
fn upper(
    sheet: &mut Sheet,
    given: Given,
    leaves: Num,
    links: Num,
    networks: f64,
    down: Num,
) -> Result<[Num; 3]> {
    let Given {
        endpoints,
        radix,
        rails,
        from,
        ..
    } = given;
    let half = (radix.v / 2.0).floor();
    let (times, each) = if networks > 1.0 {
        ("rails x ", "uplinks / rails")
    } else {
        ("", "uplinks")
    };
    let mut inputs = vec![links, radix];
    inputs.extend((networks > 1.0).then_some(rails));
    let leaves_each = leaves.v / networks;
    if leaves_each > radix.v * half {
        let most = radix.v * half * down.v * networks;
        return Err(wrong(
            format!(
                "three tiers of switches with {} ports join {most} adapters, not {}",
                radix.v, endpoints.v
            ),
            "use switches with more ports, more oversubscription, or split the network",
        ));
    }
    sheet.from(from);
    let (middles, spines) = if leaves_each <= radix.v {
        let middles = sheet.count("middles", 0.0, "0: the spines join all leaves", &[])?;
        let value = networks * ceil(links.v / networks / radix.v);
        let formula = format!("{times}ceil({each} / radix)");
        sheet.from(from);
        let spines = sheet.count("spines", value, &formula, &inputs)?;
        (middles, spines)
    } else {
        let value = networks * ceil(links.v / networks / half);
        let formula = format!("{times}ceil({each} / floor(radix / 2)): the spines cannot join all leaves");
        let middles = sheet.count("middles", value, &formula, &inputs)?;
        let value = networks * ceil(middles.v / networks * half / radix.v);
        let each = if networks > 1.0 {
            "middles / rails"
        } else {
            "middles"
        };
        let formula = format!("{times}ceil({each} x floor(radix / 2) / radix)");
        inputs[0] = middles;
        sheet.from(from);
        let spines = sheet.count("spines", value, &formula, &inputs)?;
        (middles, spines)
    };
    let value = links.v + middles.v * half;
    let formula = "uplinks + middles x floor(radix / 2)";
    let inputs = [links, middles, radix];
    sheet.from(from);
    let cables = sheet.count("cables_switches", value, formula, &inputs)?;
    Ok([middles, spines, cables])
}

/// One switch is the whole network, or the whole of each rail.
fn single(sheet: &mut Sheet, topology: Topology, given: Given, copies: f64) -> Result<()> {
    let Given { rails, from, .. } = given;
    let (formula, inputs) = if topology == Topology::FatTree {
        ("1: one switch joins all", vec![])
    } else {
        ("rails: one switch joins a rail", vec![rails])
    };
    let leaves = sheet.from(from).count("leaves", copies, formula, &inputs)?;
    for name in ["uplinks", "middles", "spines"] {
        sheet
            .from(from)
            .count(name, 0.0, "0: nothing is above one switch", &[])?;
    }
    sheet
        .from(from)
        .count("switches", leaves.v, "leaves", &[leaves])?;
    let formula = "0: nothing is above one switch";
    let cables = sheet.from(from).count("cables_switches", 0.0, formula, &[])?;
    cabling(sheet, given, cables)?;
    sheet.group("rate");
    let formula = "1: one switch does not block";
    let real = sheet
        .from(from)
        .factor("oversubscription_real", 1.0, formula, &[])?;
    bisection(sheet, topology, given, real)
}

fn cabling(sheet: &mut Sheet, given: Given, between: Num) -> Result<()> {
    let Given { endpoints, from, .. } = given;
    sheet.from(from);
    let hosts = sheet.count("cables_hosts", endpoints.v, "endpoints", &[endpoints])?;
    let formula = "cables_hosts + cables_switches";
    let value = hosts.v + between.v;
    sheet
        .from(from)
        .count("cables", value, formula, &[hosts, between])?;
    Ok(())
}

fn bisection(sheet: &mut Sheet, topology: Topology, given: Given, real: Num) -> Result<()> {
    let Given {
        endpoints,
        link,
        from,
        ..
    } = given;
    let formula = "endpoints x link / 2 / max(1, oversubscription_real)";
    let half = endpoints.v * link.v / 2.0 / real.v.max(1.0);
    let used = [endpoints, link, real];
    sheet.from(from).rate("bisection", half, formula, &used)?;
    if topology == Topology::RailOnly {
        sheet.warn(
            "bisection",
            "rails are not joined: traffic between rails goes through the nodes",
        );
    }
    Ok(())
}

/// Balanced dragonfly: a = 2p = 2h, so a switch with p adapters has 2p - 1 links in its group and p to others.
fn dragonfly(sheet: &mut Sheet, given: Given) -> Result<()> {
    let Given {
        endpoints,
        radix,
        wish,
        from,
        ..
    } = given;
    if wish.v > 1.0 {
        return Err(wrong(
            format!(
                "a balanced dragonfly has no ports down and up to set to {}",
                wish.v
            ),
            "leave oversubscription at 1, or choose the topology fat-tree",
        ));
    }
    let hosts = ((radix.v + 1.0) / 4.0).floor();
    if hosts < 1.0 {
        let hint = "a balanced dragonfly needs switches with 3 ports or more";
        return Err(wrong(
            format!("switches with {} ports make no dragonfly", radix.v),
            hint,
        ));
    }
    sheet.group("switches");
    let formula = "floor((radix + 1) / 4): adapters, and links to other groups, of a switch";
    let hosts = sheet.from(from).count("switch_hosts", hosts, formula, &[radix])?;
    let in_group = 2.0 * hosts.v * hosts.v;
    let formula = "ceil(endpoints / (2 x switch_hosts^2)): groups of twice as many switches";
    let value = ceil(endpoints.v / in_group);
    let inputs = [endpoints, hosts];
    let groups = sheet.from(from).count("groups", value, formula, &inputs)?;
    let groups_max = in_group + 1.0;
    if groups.v > groups_max {
        let most = groups_max * in_group;
        return Err(wrong(
            format!(
                "a dragonfly of switches with {} ports joins {most} adapters, not {}",
                radix.v, endpoints.v
            ),
            "use switches with more ports",
        ));
    }
    let leaves = groups.v * 2.0 * hosts.v;
    let inputs = [groups, hosts];
    let formula = "groups x 2 x switch_hosts";
    sheet.from(from).count("leaves", leaves, formula, &inputs)?;
    for name in ["middles", "spines"] {
        let formula = "0: groups are joined to each other";
        sheet.from(from).count(name, 0.0, formula, &[])?;
    }
    sheet.from(from).count("switches", leaves, formula, &inputs)?;
    let local = groups.v * hosts.v * (2.0 * hosts.v - 1.0);
    let (global, formula) = if groups.v > 1.0 {
        let formula = "groups x switch_hosts x (2 x switch_hosts - 1) + floor(groups x switch_hosts^2)";
        ((groups.v * hosts.v * hosts.v).floor(), formula)
    } else {
        (0.0, "groups x switch_hosts x (2 x switch_hosts - 1)")
    };
    sheet.from(from);
    let cables = sheet.count("cables_switches", local + global, formula, &inputs)?;
    cabling(sheet, given, cables)?;
    sheet.group("rate");
    cut(sheet, given, groups, hosts)
}

/// Links of a dragonfly that a cut into two halves of its groups (or of its only group) goes through.
fn cut(sheet: &mut Sheet, given: Given, groups: Num, hosts: Num) -> Result<()> {
    let Given {
        endpoints,
        link,
        from,
        ..
    } = given;
    let square = hosts.v * hosts.v;
    let (value, formula) = if groups.v > 1.0 {
        // A group has 2 p^2 links to the others, spread evenly.
        let pairs = (groups.v / 2.0).floor() * (groups.v / 2.0).ceil();
        let formula = "floor(groups / 2) x ceil(groups / 2) x 2 x switch_hosts^2 / (groups - 1)";
        (pairs * 2.0 * square / (groups.v - 1.0), formula)
    } else {
        (
            square,
            "switch_hosts^2: the links between two halves of the only group",
        )
    };
    let inputs = [groups, hosts];
    let used = if groups.v > 1.0 { &inputs[..] } else { &inputs[1..] };
    let links = sheet.from(from).count("bisection_links", value, formula, used)?;
    let formula = "min(endpoints / 2, bisection_links) x link";
    let value = (endpoints.v / 2.0).min(links.v) * link.v;
    let inputs = [endpoints, links, link];
    sheet.from(from).rate("bisection", value, formula, &inputs)?;
    Ok(())
}
