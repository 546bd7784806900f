//! A plan as a picture: all links in grey, the trees of one sender over them.

use crate::fabric::NONE;
use crate::plan::{Plan, Set};
use crate::topology::{LinkId, NodeId, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Of each tree: colour (told apart by colour-blind people, too) and dashes.
const TREES: [(&str, &str); 4] = [("#0060b0", ""), ("#d05000", "7 4"), ("#007850", "2 3"), ("#8030a0", "9 3 2 3")];

/// What stands for a node: itself, or the hosts of a class where there are too many to draw.
struct Drawing<'a> {
    topology: &'a Topology,
    plan: &'a Plan,
    set: &'a Set,
    /// Where each node is, and what is written there.
    places: BTreeMap<NodeId, (f64, f64)>,
    labels: Vec<Label>,
    width: f64,
    height: f64,
}

/// A node, or a box of hosts, and what is written there.
struct Label {
    x: f64,
    y: f64,
    text: String,
    hosts: bool,
    /// What its row leaves for it.
    room: f64,
}

/// More hosts than these are drawn as one box for each class.
const HOSTS_DRAWN: usize = 48;
const ROW: f64 = 110.0;
const MARGIN: f64 = 60.0;
const TITLE: f64 = 70.0;

/// Draws the trees of a sender.
#[must_use]
pub fn render(topology: &Topology, plan: &Plan, set: &Set) -> String {
    let mut drawing = Drawing { topology, plan, set, places: BTreeMap::new(), labels: Vec::new(), width: 0.0, height: 0.0 };
    drawing.place();
    drawing.write()
}

impl Drawing<'_> {
    /// Rows of switches by their distance from hosts, core switches above; hosts below.
    fn rows(&self) -> Vec<Vec<NodeId>> {
        let fabric = self.plan.fabric();
        let mut level = vec![NONE; fabric.switches.len()];
        let mut open: Vec<u32> = Vec::new();
        for class in &fabric.classes {
            for switch in class.switches() {
                if std::mem::replace(&mut level[switch as usize], 0) == NONE {
                    open.push(switch);
                }
            }
        }
        let mut at = 0;
        while at < open.len() {
            for step in fabric.steps(open[at]) {
                if level[step.to as usize] == NONE {
                    level[step.to as usize] = level[open[at] as usize] + 1;
                    open.push(step.to);
                }
            }
            at += 1;
        }
        let mut rows: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
        for (switch, node) in fabric.switches.iter().enumerate().filter(|(switch, _)| level[*switch] != NONE) {
            rows.entry(level[switch]).or_default().push(*node);
        }
        rows.into_values().rev().collect()
    }

    fn place(&mut self) {
        let mut rows = self.rows();
        let fabric = self.plan.fabric();
        let boxed = fabric.host_count() > HOSTS_DRAWN;
        let mut hosts: Vec<Vec<NodeId>> =
            fabric.classes.iter().map(|class| class.members.iter().map(|member| member.host).collect()).collect();
        hosts.retain(|of: &Vec<NodeId>| !of.is_empty());
        if !boxed {
            hosts = hosts.into_iter().flatten().map(|host| vec![host]).collect();
            hosts.sort();
        }
        rows.push(hosts.iter().map(|of| of[0]).collect());
        let most = rows.iter().map(Vec::len).max().unwrap_or(1);
        let gap = if most > 24 { 46.0 } else { 90.0 };
        self.width = (2.0 * MARGIN + gap * (most.max(5) - 1) as f64).max(520.0);
        self.height = TITLE + MARGIN + ROW * (rows.len() - 1) as f64 + MARGIN;
        for (row, nodes) in rows.iter().enumerate() {
            let y = TITLE + MARGIN / 2.0 + ROW * row as f64;
            for (at, node) in nodes.iter().enumerate() {
                let x = MARGIN + (self.width - 2.0 * MARGIN) * (at as f64 + 0.5) / nodes.len() as f64;
                self.places.insert(*node, (x, y));
                let last = row + 1 == rows.len();
                let of = if last { &hosts[at][..] } else { std::slice::from_ref(node) };
                for host in of {
                    self.places.insert(*host, (x, y));
                }
                let room = (self.width - 2.0 * MARGIN) / nodes.len() as f64;
                self.labels.push(Label { x, y, text: self.label(of), hosts: last, room });
            }
        }
    }

    fn label(&self, of: &[NodeId]) -> String {
        let name = |at: usize| self.topology.name_of(of[at]);
        if of.len() == 1 { name(0).into() } else { format!("{} … {} ({})", name(0), name(of.len() - 1), of.len()) }
    }

    fn write(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" width=\"{:.0}\" height=\"{:.0}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            self.width, self.height, self.width, self.height
        );
        let sender = self.topology.name_of(self.set.sender);
        let _ = writeln!(
            svg,
            "<text x=\"16\" y=\"24\" font-size=\"16\">{}: the trees of {sender}</text>",
            escape(&self.topology.name)
        );
        for (tree, (colour, dashes)) in TREES.iter().enumerate().take(self.set.trees.len()) {
            let x = 16 + 110 * tree;
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"44\" x2=\"{}\" y2=\"44\" stroke=\"{colour}\" stroke-width=\"3\" stroke-dasharray=\"{dashes}\"/>\
                 <text x=\"{}\" y=\"48\">tree {}</text>",
                x + 40,
                x + 46,
                tree + 1
            );
        }
        self.write_links(&mut svg);
        for (tree, of) in self.set.trees.iter().enumerate() {
            let cables: BTreeSet<u32> = of.arcs(self.plan.fabric(), self.set.sender).map(|arc| arc / 2).collect();
            let (colour, dashes) = TREES[tree % TREES.len()];
            // Trees beside each other, where both have a cable or a box of hosts.
            let shift = 5.0 * tree as f64 - 2.5 * (self.set.trees.len() - 1) as f64;
            let mut drawn = BTreeSet::new();
            for cable in cables {
                let style = format!("stroke=\"{colour}\" stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"");
                self.line(&mut svg, LinkId::new(cable as usize), shift, &style, &mut drawn);
            }
        }
        self.write_nodes(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    fn write_links(&self, svg: &mut String) {
        let mut drawn = BTreeSet::new();
        for id in self.topology.links() {
            let certain = self.topology.link(id).spec.certain;
            let dashes = if certain { "" } else { "1 4" };
            let style = format!("stroke=\"#c8c8c8\" stroke-width=\"1\" stroke-dasharray=\"{dashes}\"");
            self.line(svg, id, 0.0, &style, &mut drawn);
        }
    }

    /// A link, once for all hosts of a box.
    fn line(&self, svg: &mut String, id: LinkId, shift: f64, style: &str, drawn: &mut BTreeSet<[i64; 4]>) {
        let link = self.topology.link(id);
        let (Some((x1, y1)), Some((x2, y2))) = (self.places.get(&link.a.0), self.places.get(&link.b.0)) else { return };
        if drawn.insert([x1, y1, x2, y2].map(|v| *v as i64)) {
            // Switches of one row are joined by a bow, so that the line passes none between.
            let bow = if (y1 - y2).abs() < 1.0 { 18.0 + 1.6 * shift + (x1 - x2).abs() / 12.0 } else { 0.0 };
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {y1:.1} Q{:.1} {:.1} {:.1} {y2:.1}\" fill=\"none\" {style}/>",
                x1 + shift,
                (x1 + x2) / 2.0 + shift,
                (y1 + y2) / 2.0 - bow,
                x2 + shift
            );
        }
    }

    fn write_nodes(&self, svg: &mut String) {
        let sender = self.places.get(&self.set.sender);
        for Label { x, y, text, hosts, room } in &self.labels {
            let own = *hosts && sender.is_some_and(|(sx, sy)| (sx - x).abs() < 0.1 && (sy - y).abs() < 0.1);
            let (fill, stroke) = if own { ("#ffe9a8", 2.0) } else { ("white", 1.0) };
            let (shape, end, below) = if *hosts {
                (format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\""), "circle", 24.0)
            } else {
                let (left, top) = (x - 13.0, y - 8.0);
                let size = "width=\"26\" height=\"16\" rx=\"3\"";
                (format!("<rect x=\"{left:.1}\" y=\"{top:.1}\" {size}"), "rect", -13.0)
            };
            let _ =
                writeln!(svg, "{shape} fill=\"{fill}\" stroke=\"black\" stroke-width=\"{stroke}\"><title>{text}</title></{end}>");
            // What has no room is shown by browsers under the pointer.
            if 6.5 * text.chars().count() as f64 <= *room {
                let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>", y + below);
            }
        }
    }
}

/// Names of nodes have no markup in them (`topology::check_name`); a title may.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
