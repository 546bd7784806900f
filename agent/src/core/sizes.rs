//! How large packets may be that reach the others: asked once a second, and kept to by the lane.

use super::Core;
use crate::shares::EventSource;
use fide_lane::Prober;
use fide_proto::node::sizes::Passes;
use fide_wire::PATHS;
use fide_wire::level::SIZE_EVENT_CODE;

/// No frame is larger, on any interface.
const PACKET_MAX: usize = 1500;

impl Core {
    /// A second is over: what came back of large questions, and the next ones.
    pub(super) fn ask_sizes(&mut self, now: u64) {
        let full = std::array::from_fn(|path| {
            let mtu = self.lane.mtu(path as u8).filter(|_| self.prober.is_some())?;
            Some(mtu.min(PACKET_MAX) as u16)
        });
        let (asks, news) = self.node.ask_sizes(full);
        for news in &news {
            self.tell_size(news);
        }
        if !news.is_empty() {
            for path in 0..PATHS {
                self.lane.set_limit(path as u8, self.node.sizes().limit(path).map(usize::from));
            }
            self.regrant();
            self.host_changed(now);
        }
        for (node, path, size) in asks {
            self.ask(node, path, |prober: &mut Prober, node, path, address| prober.echo_sized(node, path, address, size));
        }
    }

    fn tell_size(&mut self, news: &Passes) {
        let (name, path, full) = (self.node_name(news.node), news.path, news.full);
        let text = match news.limit {
            Some(limit) => format!(
                "path {path}: large frames do not reach {name}, or come back from it: packets of {limit} bytes do, of {full} do not; \
                 this host sends smaller ones there (the MTU of a switch or tunnel on the way?)"
            ),
            None => format!("path {path}: frames of {full} bytes reach {name} again"),
        };
        self.tell_local(EventSource::OWN, SIZE_EVENT_CODE, text);
    }
}
