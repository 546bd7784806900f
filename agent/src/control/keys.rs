//! Which keys every host of the cluster holds, by fingerprint: what a rotation waits for.

use super::{Control, LoopRequest};
use fide_wire::control::{HeldKey, HostKeys};
use fide_wire::frame::table::Keys;

impl Control {
    /// Tells all other hosts which keys this one holds now.
    pub(super) fn spread_keys(&mut self) {
        let keyring = &self.config.keyring;
        // Without a secret there is nothing to name.
        let keys = Keys(if keyring.is_secret() { keyring.fingerprints().collect() } else { Vec::new() });
        self.keys.insert(self.config.node.clone(), keys.clone());
        self.core.tell(LoopRequest::PutKeys(keys));
    }

    /// Another host says which it holds.
    pub(super) fn keys_learned(&mut self, host: String, keys: Keys) {
        self.keys.insert(host, keys);
    }

    /// Of every host that said so.
    pub(super) fn held_keys(&self) -> Vec<HostKeys> {
        let held = |(id, fingerprint): &(u8, u64)| HeldKey { id: *id, fingerprint: format!("{fingerprint:016x}") };
        let of_host = |(host, keys): (&String, &Keys)| HostKeys { host: host.clone(), keys: keys.0.iter().map(held).collect() };
        self.keys.iter().filter(|(_, keys)| !keys.0.is_empty()).map(of_host).collect()
    }
}
