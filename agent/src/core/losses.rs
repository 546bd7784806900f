//! Names paths that lose a part of what others send.

use super::Core;
use crate::shares::EventSource;
use fide_proto::node::losses::Loss;
use fide_wire::PATHS;
use fide_wire::level::LOSS_EVENT_CODE;

impl Core {
    /// A second is over: what came of it on each path is told where it has changed.
    pub(super) fn look_at_losses(&mut self) {
        let rows = self.peers.iter().enumerate().filter_map(|(slot, peer)| {
            let peer = peer.as_ref().filter(|peer| !peer.condemned && !peer.left)?;
            let row = self.receiver.peer(slot);
            Some((peer.node, row.path.map(|path| (path.arrived, path.lost))))
        });
        let news = self.losses.tick(rows);
        for path in 0..PATHS {
            let news: Vec<&Loss> = news.iter().filter(|loss| loss.path == path).collect();
            let (begins, ends): (Vec<_>, Vec<_>) = news.into_iter().partition(|loss| loss.lost != 0);
            if !begins.is_empty() {
                self.tell_loss(path, &begins);
            }
            if !ends.is_empty() {
                let names = self.names(ends.iter().map(|loss| loss.node));
                let text = format!("path {path}: what {names} sends arrives again");
                self.tell_local(EventSource::OWN, LOSS_EVENT_CODE, text);
            }
        }
    }

    fn tell_loss(&mut self, path: usize, begins: &[&Loss]) {
        let percent = |loss: &&Loss| loss.lost as f64 * 100.0 / loss.of.max(1) as f64;
        let rates: Vec<String> =
            begins.iter().map(|loss| format!("{:.1} % of {}'s heartbeats", percent(loss), self.node_name(loss.node))).collect();
        let interface = self.lane.interface(path as u8).unwrap_or_default().to_owned();
        let (loses, does_not) = self.losses.on(path);
        let likely = match (loses.len(), does_not.len()) {
            (1, 0) => format!("something between that host and {interface}"),
            (_, 0) => format!("of all hosts: {interface}, its cable or its port, or the whole network"),
            (1, _) => "of this host alone: its interface, its cable or its port".to_owned(),
            _ => "of these hosts alone: what they share, a switch perhaps".to_owned(),
        };
        let text = format!("path {path}: {} do not arrive here ({likely}?)", rates.join(", "));
        self.tell_local(EventSource::OWN, LOSS_EVENT_CODE, text);
    }

    /// In one text.
    fn names(&self, nodes: impl Iterator<Item = u32>) -> String {
        let mut names: Vec<String> = nodes.map(|node| self.node_name(node)).collect();
        names.sort();
        names.join(", ")
    }
}
