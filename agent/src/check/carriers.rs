//! Since when the interfaces of the paths have had their carrier without interruption. A NIC that loses it may keep what waits in its ring for as long as
//! it likes, or drop it and count nothing; and no answer comes by it.

use crate::links;

/// What is known of the carriers of the paths' interfaces.
#[derive(Debug)]
pub struct Carriers {
    interfaces: Vec<String>,
    /// Beside each: how it was last found, and when it was last found otherwise than whole.
    seen: Vec<(Option<links::Carrier>, u64)>,
}

impl Carriers {
    /// Of these interfaces, in the order of the paths. None is known to have had its carrier before the first [look](Self::look).
    #[must_use]
    pub fn new(interfaces: Vec<String>) -> Self {
        Self { seen: vec![(None, 0); interfaces.len()], interfaces }
    }

    /// The interfaces, in the order of the paths.
    #[must_use]
    pub fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// Looks at all of them. What happened since the last look counts as of now.
    pub fn look(&mut self, now_ns: impl Fn() -> u64) {
        for (interface, (before, broken_ns)) in self.interfaces.iter().zip(&mut self.seen) {
            let found = links::carrier(interface).inspect_err(|e| tracing::debug!("the carrier of {interface}: {e}")).ok();
            // The kernel counts every change, also those between two looks.
            if found != *before || !found.is_some_and(|c| c.there) {
                *broken_ns = now_ns();
            }
            *before = found;
        }
    }

    /// When the carrier of this path was last found otherwise than whole (CLOCK_MONOTONIC), and of which interface.
    #[must_use]
    pub fn broken(&self, path: usize) -> Option<(u64, &str)> {
        Some((self.seen.get(path)?.1, self.interfaces.get(path)?))
    }

    /// # Errors
    /// Why it may be that something still waits in the NIC of this path: it has no carrier, or had none at some time since.
    pub fn whole_since(&self, path: usize, since_ns: u64) -> Result<(), String> {
        let (Some(interface), Some((last, broken_ns))) = (self.interfaces.get(path), self.seen.get(path)) else {
            return Err(format!("there is no path {path}"));
        };
        match last {
            Some(c) if c.there && *broken_ns < since_ns => Ok(()),
            Some(c) if c.there => {
                Err(format!("the carrier of path {path} ({interface}) was gone after the deadline: check again"))
            }
            _ => Err(format!("path {path} ({interface}) has no carrier: what came before it went may still wait in the NIC")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::namespace;

    #[test]
    fn an_interruption_between_two_looks_is_seen() {
        namespace::inside(|| {
            assert!(namespace::ip("link add v0 type veth peer name v1"));
            assert!(namespace::ip("link set v0 up") && namespace::ip("link set v1 up"));
            let mut carriers = Carriers::new(vec!["v0".into(), "none".into()]);
            carriers.look(|| 100);
            assert!(carriers.whole_since(0, 100).is_err(), "before is not known");
            assert_eq!(carriers.whole_since(0, 101), Ok(()));
            assert!(carriers.whole_since(1, 101).is_err_and(|why| why.contains("path 1 (none) has no carrier")));
            carriers.look(|| 200);
            assert_eq!(carriers.whole_since(0, 101), Ok(()), "nothing happened");
            assert!(namespace::ip("link set v1 down") && namespace::ip("link set v1 up"));
            carriers.look(|| 300);
            assert!(carriers.whole_since(0, 300).is_err_and(|why| why.contains("was gone")));
            assert_eq!(carriers.whole_since(0, 301), Ok(()));
            assert_eq!(carriers.broken(0), Some((300, "v0")));
            assert!(namespace::ip("link set v1 down"));
            carriers.look(|| 400);
            assert!(carriers.whole_since(0, 500).is_err_and(|why| why.contains("has no carrier")), "it still has none");
            // Another one of the same name.
            assert!(namespace::ip("link del v0") && namespace::ip("link add v0 type veth peer name v1"));
            assert!(namespace::ip("link set v0 up") && namespace::ip("link set v1 up"));
            carriers.look(|| 600);
            assert!(carriers.whole_since(0, 600).is_err());
            assert_eq!(carriers.whole_since(0, 601), Ok(()));
        });
    }
}
