//! What a lab shall be.

use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// The fewest hosts of a lab.
pub const MIN_HOSTS: u16 = 2;
/// The most hosts of a lab.
pub const MAX_HOSTS: u16 = 64;
/// The longest name of a lab, in bytes. Namespace names are files and could be longer; paths of Unix sockets in
/// [`crate::Lab::host_dir`] cannot (108 bytes in all).
pub(crate) const MAX_NAME: usize = 32;

/// What to make. [`Default`] is three hosts, IPv4 and IPv6, kept until [`crate::Lab::down`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabSpec {
    /// The lab's name: lower-case letters, digits and hyphens, at most 32. `None`: a unique one is made up.
    pub name: Option<String>,
    /// How many hosts, [`MIN_HOSTS`] to [`MAX_HOSTS`].
    pub hosts: u16,
    /// Whether the hosts have IPv6 addresses beside the IPv4 ones. Without, IPv6 is off in every namespace.
    pub ipv6: bool,
    /// Owned by the process that makes it: removed when the [`crate::Lab`] is dropped, and also when that process
    /// is killed. Otherwise the lab stays until someone calls [`crate::Lab::down`].
    pub ephemeral: bool,
    /// Switches look at IGMP and MLD and deliver multicast to members only, with a querier on each switch (about
    /// four seconds until it takes effect). Off: switches flood multicast, as unmanaged ones do.
    pub multicast_snooping: bool,
}

impl Default for LabSpec {
    fn default() -> Self {
        LabSpec { name: None, hosts: 3, ipv6: true, ephemeral: false, multicast_snooping: false }
    }
}

impl LabSpec {
    pub(crate) fn check(&self) -> Result<(), LabError> {
        if !(MIN_HOSTS..=MAX_HOSTS).contains(&self.hosts) {
            return Err(LabError::BadSpec(format!(
                "a lab has {MIN_HOSTS} to {MAX_HOSTS} hosts, not {}; ask for a number in that range",
                self.hosts
            )));
        }
        match &self.name {
            Some(name) => check_name(name),
            None => Ok(()),
        }
    }
}

/// Refuses names that could not be part of a namespace's and a directory's name, or read as an option.
pub(crate) fn check_name(name: &str) -> Result<(), LabError> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let good =
        !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(legal) && !name.starts_with('-') && !name.ends_with('-');
    if good {
        return Ok(());
    }
    Err(LabError::BadSpec(format!(
        "{name:?} cannot name a lab: use 1 to {MAX_NAME} lower-case letters, digits and hyphens, \
         with no hyphen at either end"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_counts_outside_the_range_are_refused_with_the_range() {
        for hosts in [0, 1, 65, u16::MAX] {
            let error = LabSpec { hosts, ..LabSpec::default() }.check().unwrap_err().to_string();
            assert!(error.contains("2 to 64"), "{error}");
        }
        for hosts in [2, 3, 64] {
            LabSpec { hosts, ..LabSpec::default() }.check().unwrap();
        }
    }

    #[test]
    fn names_that_could_escape_a_directory_or_be_an_option_are_refused() {
        for name in ["", "-x", "x-", "..", "a/b", "A", "ä", "a b", &"x".repeat(33)] {
            assert!(check_name(name).is_err(), "{name:?} was accepted");
        }
        for name in ["a", "demo", "lab-3f9a1c", "7"] {
            check_name(name).unwrap();
        }
    }
}
