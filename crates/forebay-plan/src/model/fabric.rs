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
        /// Ports down per port up at the first switches; 1 does not block.
        oversubscription: Factor = lit(1.0),
        /// Rails: adapters of a node.
        rails: Count = lit(8.0),
    }
}

/// Numbers of switches and cables.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Parts {
    leaves: f64,
    middles: f64,
    spines: f64,
    cables_hosts: f64,
    cables_switches: f64,
    /// Ports down per port up at the leaves, as whole ports allow.
    oversubscription: f64,
}

/// Ports down and up at a leaf.
fn split(radix: f64, oversubscription: f64) -> [f64; 2] {
    // The last bits of the division must not cost a port.
    let down = (radix * oversubscription / (1.0 + oversubscription) + 1e-9).floor();
    let down = down.clamp(1.0, radix - 1.0);
    [down, radix - down]
}

fn fat_tree(endpoints: f64, radix: f64, oversubscription: f64) -> Result<Parts> {
    let [down, up] = split(radix, oversubscription);
    let leaves = ceil(endpoints / down);
    let half = (radix / 2.0).floor();
    let mut parts = Parts {
        leaves,
        middles: 0.0,
        spines: 0.0,
        cables_hosts: endpoints,
        cables_switches: 0.0,
        oversubscription: down / up,
    };
    if endpoints <= radix {
        // One switch is the whole network.
        return Ok(Parts {
            leaves: 1.0,
            oversubscription: 1.0,
            ..parts
        });
    }
    parts.cables_switches = leaves * up;
    if leaves <= radix {
        parts.spines = ceil(leaves * up / radix);
        return Ok(parts);
    }
    let endpoints_max = radix * half * down;
    if endpoints > endpoints_max {
        return Err(wrong(
            format!(
                "three tiers of switches with {radix} ports join {endpoints_max} adapters, not {endpoints}"
            ),
            "use switches with more ports, more oversubscription, or split the network",
        ));
    }
    parts.middles = ceil(leaves * up / half);
    parts.spines = ceil(parts.middles * half / radix);
    parts.cables_switches += parts.middles * half;
    Ok(parts)
}

fn rail(request: &Request, endpoints: f64, radix: f64, rails: f64) -> Result<Parts> {
    let nodes = ceil(endpoints / rails);
    if request.topology == Topology::RailOnly {
        // Each rail is a network of its own.
        let one = fat_tree(nodes, radix, 1.0)?;
        return Ok(Parts {
            leaves: one.leaves * rails,
            middles: one.middles * rails,
            spines: one.spines * rails,
            cables_hosts: endpoints,
            cables_switches: one.cables_switches * rails,
            oversubscription: one.oversubscription,
        });
    }
    let oversubscription = crate::quantity::Measure::get(request.oversubscription);
    let [down, up] = split(radix, oversubscription);
    let leaves = rails * ceil(nodes / down);
    // As in a fat tree whose leaves are all full; a leaf belongs to one rail only.
    let full = fat_tree(leaves * down, radix, oversubscription)?;
    if leaves <= radix {
        let spines = ceil(leaves * up / radix);
        return Ok(Parts {
            leaves,
            spines,
            cables_hosts: endpoints,
            cables_switches: leaves * up,
            middles: 0.0,
            oversubscription: down / up,
        });
    }
    Ok(Parts {
        cables_hosts: endpoints,
        ..full
    })
}

/// Balanced dragonfly: a = 2p = 2h.
fn dragonfly(endpoints: f64, radix: f64) -> Result<Parts> {
    let hosts = ((radix + 1.0) / 4.0).floor();
    if hosts < 1.0 {
        let hint = "a balanced dragonfly needs switches with 3 ports or more";
        return Err(wrong(
            format!("switches with {radix} ports make no dragonfly"),
            hint,
        ));
    }
    let switches = 2.0 * hosts;
    let groups = ceil(endpoints / (switches * hosts));
    let groups_max = switches * hosts + 1.0;
    if groups > groups_max {
        let endpoints_max = groups_max * switches * hosts;
        return Err(wrong(
            format!(
                "a dragonfly of switches with {radix} ports joins {endpoints_max} adapters, not {endpoints}"
            ),
            "use switches with more ports",
        ));
    }
    let local = groups * switches * (switches - 1.0) / 2.0;
    let global = if groups > 1.0 {
        (groups * switches * hosts / 2.0).floor()
    } else {
        0.0
    };
    Ok(Parts {
        leaves: groups * switches,
        middles: 0.0,
        spines: 0.0,
        cables_hosts: endpoints,
        cables_switches: local + global,
        oversubscription: 1.0,
    })
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
    let (parts, from) = match request.topology {
        Topology::FatTree => (fat_tree(endpoints.v, radix.v, wish.v)?, source::FAT_TREE),
        Topology::Rail | Topology::RailOnly => (rail(request, endpoints.v, radix.v, rails.v)?, source::RAIL),
        Topology::Dragonfly => (dragonfly(endpoints.v, radix.v)?, source::DRAGONFLY),
    };
    figures(
        &mut sheet,
        request,
        parts,
        [endpoints, radix, wish, rails],
        link,
        from,
    )?;
    Ok(sheet.finish())
}

fn figures(
    sheet: &mut Sheet,
    request: &Request,
    parts: Parts,
    inputs: [Num; 4],
    link: Num,
    from: &str,
) -> Result<()> {
    let topology = request.topology;
    let leaf = match topology {
        Topology::FatTree => "ceil(endpoints / ports down)",
        Topology::Rail | Topology::RailOnly => "rails x ceil(nodes / ports down)",
        Topology::Dragonfly => "groups x 2p switches, p = floor((radix + 1)/4) adapters each",
    };
    sheet.group("switches");
    let mut count = |name, value, formula: &str| sheet.from(from).count(name, value, formula, &inputs);
    let leaves = count("leaves", parts.leaves, leaf)?;
    let middles = count(
        "middles",
        parts.middles,
        "ceil(cables from the leaves / (radix / 2)), with three tiers",
    )?;
    let spines = count("spines", parts.spines, "ceil(cables from below / radix)")?;
    let total = leaves.v + middles.v + spines.v;
    count("switches", total, "leaves + middles + spines")?;
    let hosts = count("cables_hosts", parts.cables_hosts, "endpoints")?;
    let between = count(
        "cables_switches",
        parts.cables_switches,
        "ports up in use, or joins within and between groups",
    )?;
    count("cables", hosts.v + between.v, "cables_hosts + cables_switches")?;
    sheet.group("rate");
    let formula = "ports down / ports up, in whole ports";
    let real = parts.oversubscription;
    let real = sheet
        .from(from)
        .factor("oversubscription_real", real, formula, &inputs[1..3])?;
    let formula = "endpoints x link / 2 / oversubscription_real";
    let endpoints = inputs[0];
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
