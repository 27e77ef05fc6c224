//! The cluster's network: a bridge on the machine with the control plane's address, a link to each node, and routes to
//! each node's Pods. Nothing on it can be reached from outside the machine.

mod firewall;

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::command::{command, output};
use crate::layout::Layout;

/// A block of 2^12 addresses (`/20`), divided by the third octet: `+0` for the bridge and the nodes, `+1` and up for
/// each node's Pods, `+8` for the Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// First address.
    base: Ipv4Addr,
}

/// Length of a [`Block`]'s prefix.
const PREFIX: u8 = 20;

impl Block {
    /// The bridge's address, on which the control plane listens.
    pub fn control_plane(self) -> Ipv4Addr {
        self.address(0, 1)
    }

    /// The network of the bridge and the nodes.
    pub fn machines(self) -> String {
        format!("{}/24", self.address(0, 0))
    }

    /// The API server's address, `https://host:port`.
    pub fn api_server(self) -> String {
        format!("https://{}:6443", self.control_plane())
    }

    /// A node's address; nodes count from 1.
    pub fn node(self, index: u8) -> Ipv4Addr {
        self.address(0, 10 + index)
    }

    /// The addresses of a node's Pods.
    pub fn pods(self, index: u8) -> String {
        format!("{}/24", self.address(index, 0))
    }

    /// The addresses of all Pods, and a few more.
    pub fn all_pods(self) -> String {
        format!("{}/21", self.address(0, 0))
    }

    /// The addresses of Services.
    pub fn services(self) -> String {
        format!("{}/24", self.address(8, 0))
    }

    /// The Service of the API server: the first address of the range.
    pub fn api_service(self) -> Ipv4Addr {
        self.address(8, 1)
    }

    /// The Service of the cluster's DNS: by convention the tenth address.
    pub fn dns_service(self) -> Ipv4Addr {
        self.address(8, 10)
    }

    fn address(self, third: u8, fourth: u8) -> Ipv4Addr {
        let [a, b, c, _] = self.base.octets();
        Ipv4Addr::new(a, b, c + third, fourth)
    }

    fn overlaps(self, network: Ipv4Addr, prefix: u8) -> bool {
        let shorter = u32::from(prefix.min(PREFIX));
        // A default route has length 0, where the shift overflows: it overlaps everything. Callers leave it out.
        let mask = u32::MAX.checked_shl(32 - shorter).unwrap_or(0);
        u32::from(network) & mask == u32::from(self.base) & mask
    }
}

/// Blocks to choose from, in order, away from Docker's, Kubernetes' usual defaults and home routers'.
fn candidates() -> impl Iterator<Item = Block> {
    [119, 203, 147, 231].into_iter().flat_map(|second| {
        [64, 160, 208].map(|third| Block {
            base: Ipv4Addr::new(10, second, third, 0),
        })
    })
}

/// The first block that no route of the machine touches.
fn choose(routes: &str) -> Option<Block> {
    let taken: Vec<_> = routes.lines().filter_map(route_target).collect();
    candidates().find(|block| !taken.iter().any(|&(network, prefix)| block.overlaps(network, prefix)))
}

/// The target of a line of `ip -4 route show table all`; nothing for a default route.
fn route_target(line: &str) -> Option<(Ipv4Addr, u8)> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let target = match first {
        "local" | "broadcast" | "unreachable" | "blackhole" | "prohibit" | "unicast" | "multicast" => words.next()?,
        other => other,
    };
    match target.split_once('/') {
        Some((address, prefix)) => Some((address.parse().ok()?, prefix.parse().ok()?)),
        None => Some((target.parse().ok()?, 32)),
    }
}

pub fn ip(line: &str) -> Result<String> {
    Ok(output(&mut command("ip", line.split_whitespace()))?)
}

fn ip_anyway(line: &str) {
    // It fails if the thing does not exist.
    let _ = ip(line);
}

fn exists(link: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(link).exists()
}

/// Makes the bridge, with free addresses.
pub fn make_bridge(layout: &Layout) -> Result<Block> {
    let bridge = layout.bridge();
    if exists(&bridge) {
        bail!("there is a link {bridge} already: take it away with `cargo testbed down`");
    }
    let routes = ip("-4 route show table all").context("failed to list the machine's routes")?;
    let Some(block) = choose(&routes) else {
        bail!("every network that the testbed could use is taken on this machine: see `ip route show table all`");
    };
    ip(&format!("link add {bridge} type bridge")).context("failed to make the cluster's bridge")?;
    ip(&format!("addr add {}/24 dev {bridge}", block.control_plane()))?;
    ip(&format!("link set {bridge} up"))?;
    firewall::open(&bridge).context("failed to let the cluster's bridge through the machine's packet filter")?;
    Ok(block)
}

/// Makes a node's link, with its far end in the network namespace of process `pid`, and the route to its Pods.
pub fn connect_node(layout: &Layout, block: Block, index: u8, pid: i32) -> Result<()> {
    let (link, bridge) = (layout.link(index), layout.bridge());
    ip_anyway(&format!("link delete {link}"));
    ip(&format!("link add {link} type veth peer name eth0 netns {pid}")).context("failed to make the node's link")?;
    ip(&format!("link set {link} master {bridge} up"))?;
    ip(&format!(
        "route replace {} via {} dev {bridge}",
        block.pods(index),
        block.node(index)
    ))?;
    Ok(())
}

/// Makes the link of a node in a virtual machine, which qemu opens, and the route to its Pods.
pub fn connect_machine(layout: &Layout, block: Block, index: u8) -> Result<()> {
    disconnect_machine(layout, block, index);
    let (link, bridge) = (layout.link(index), layout.bridge());
    ip(&format!("tuntap add dev {link} mode tap"))
        .context("failed to make the machine's link, which takes /dev/net/tun")?;
    ip(&format!("link set {link} master {bridge} up"))?;
    ip(&format!(
        "route replace {} via {} dev {bridge}",
        block.pods(index),
        block.node(index)
    ))?;
    Ok(())
}

/// Removes them.
pub fn disconnect_machine(layout: &Layout, block: Block, index: u8) {
    ip_anyway(&format!("link delete {}", layout.link(index)));
    ip_anyway(&format!("route delete {} dev {}", block.pods(index), layout.bridge()));
}

/// The node's part of the configuration, in its own network namespace.
pub fn configure_node(block: Block, index: u8, nodes: u8) -> Result<()> {
    ip("link set lo up")?;
    ip(&format!("addr add {}/24 dev eth0", block.node(index)))?;
    ip("link set eth0 up")?;
    ip(&format!("route add default via {}", block.control_plane()))?;
    for other in (1..=nodes).filter(|&other| other != index) {
        ip(&format!("route add {} via {}", block.pods(other), block.node(other)))?;
    }
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("failed to let the node forward packets")
}

/// Removes the bridge and the links, whatever is left of them.
pub fn remove(layout: &Layout, nodes: u8) {
    for index in 1..=nodes {
        ip_anyway(&format!("link delete {}", layout.link(index)));
    }
    ip_anyway(&format!("link delete {}", layout.bridge()));
    firewall::close(&layout.bridge());
}

/// Rules of the machine's packet filter that name the cluster's bridge.
pub fn rules_of(layout: &Layout) -> Vec<String> {
    firewall::naming(&layout.bridge())
}

/// The cluster's existing links.
pub fn leftovers(layout: &Layout, nodes: u8) -> Vec<String> {
    (1..=nodes)
        .map(|index| layout.link(index))
        .chain([layout.bridge()])
        .filter(|link| exists(link))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{choose, route_target};
    use std::net::Ipv4Addr;

    #[test]
    fn a_block_is_chosen_around_what_is_taken() {
        let free = choose("default via 192.0.2.1 dev eth0\n192.0.2.0/24 dev eth0 proto kernel\n").unwrap();
        assert_eq!(free.control_plane(), Ipv4Addr::new(10, 119, 64, 1));
        assert_eq!(free.node(2), Ipv4Addr::new(10, 119, 64, 12));
        assert_eq!(free.pods(2), "10.119.66.0/24");
        assert_eq!(free.services(), "10.119.72.0/24");
        let beside = choose("10.119.64.0/18 via 192.0.2.7 dev eth0\n").unwrap();
        assert_eq!(beside.control_plane(), Ipv4Addr::new(10, 119, 160, 1));
        let other = choose("local 10.119.64.9 dev eth1 table local\n10.119.160.0/19 dev vpn\n").unwrap();
        assert_eq!(other.control_plane(), Ipv4Addr::new(10, 119, 208, 1));
        assert_eq!(choose("10.0.0.0/8 dev vpn\n"), None);
    }

    #[test]
    fn targets_of_routes_are_read() {
        assert_eq!(route_target("default via 192.0.2.1 dev eth0"), None);
        assert_eq!(
            route_target("broadcast 10.1.2.255 dev eth0 table local"),
            Some((Ipv4Addr::new(10, 1, 2, 255), 32))
        );
        assert_eq!(
            route_target("10.1.0.0/16 dev x"),
            Some((Ipv4Addr::new(10, 1, 0, 0), 16))
        );
        assert_eq!(route_target(""), None);
    }
}
