//! Whose the ids of a group's clients are, on this host.
//!
//! A client that comes back with its id goes on as the same client. Who uses another's id makes
//! that one's proposals disappear, so an id belongs to the user that has used it first here.

use std::collections::{BTreeMap, VecDeque};

/// Ids of one user that are remembered for each group: those that it has used last.
const PER_USER: usize = 1024;
/// Ids of all users that are remembered for each group.
const ALL: usize = 8192;

/// Of one group, as long as it lives.
#[derive(Debug, Default)]
pub struct ClientIds {
    /// Which group of that name; 0: not known yet.
    lineage: u64,
    /// By id: the user, and the one under whom it is counted.
    owners: BTreeMap<u64, (u32, u32)>,
    /// Ids in the order in which they were used, by the user under whom they are counted.
    used: BTreeMap<u32, VecDeque<u64>>,
}

impl ClientIds {
    /// It is this group of that name now. Another one than before has clients of its own.
    pub fn set_lineage(&mut self, lineage: u64) {
        if lineage != 0 && self.lineage != 0 && lineage != self.lineage {
            *self = Self::default();
        }
        self.lineage = self.lineage.max(lineage);
    }

    /// Whether this user may come as that client.
    ///
    /// # Errors
    /// Another user has used the id: which one.
    pub fn may_use(&self, client: u64, uid: u32) -> Result<(), u32> {
        match self.owners.get(&client) {
            Some((owner, _)) if uid != 0 && *owner != uid => Err(*owner),
            _ => Ok(()),
        }
    }

    /// This user comes as that client, which it may. `account`: under whom it is counted.
    pub fn note(&mut self, client: u64, uid: u32, account: u32) {
        self.forget(client);
        let is_full = |used: &BTreeMap<u32, VecDeque<u64>>| used.get(&account).is_some_and(|ids| ids.len() >= PER_USER);
        if is_full(&self.used) {
            self.forget_oldest_of(account);
        }
        // Whoever uses many ids loses his own.
        if self.owners.len() >= ALL
            && let Some(greediest) = self.used.iter().max_by_key(|(_, ids)| ids.len()).map(|(account, _)| *account)
        {
            self.forget_oldest_of(greediest);
        }
        self.owners.insert(client, (uid, account));
        self.used.entry(account).or_default().push_back(client);
    }

    fn forget(&mut self, client: u64) {
        let Some((_, account)) = self.owners.remove(&client) else { return };
        let Some(ids) = self.used.get_mut(&account) else { return };
        ids.retain(|id| *id != client);
        if ids.is_empty() {
            self.used.remove(&account);
        }
    }

    fn forget_oldest_of(&mut self, account: u32) {
        if let Some(oldest) = self.used.get(&account).and_then(VecDeque::front).copied() {
            self.forget(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_its_first_users_and_root_may_take_it_over() {
        let mut ids = ClientIds::default();
        assert_eq!(ids.may_use(7, 1000), Ok(()));
        ids.note(7, 1000, 1000);
        assert_eq!((ids.may_use(7, 1000), ids.may_use(7, 1001), ids.may_use(7, 0)), (Ok(()), Err(1000), Ok(())));
        ids.note(7, 0, 0);
        assert_eq!((ids.may_use(7, 1000), ids.may_use(7, 0)), (Err(0), Ok(())));
    }

    #[test]
    fn another_group_of_that_name_has_clients_of_its_own() {
        let mut ids = ClientIds::default();
        ids.note(7, 1000, 1000);
        ids.set_lineage(3);
        ids.set_lineage(0);
        ids.set_lineage(3);
        assert_eq!(ids.may_use(7, 1001), Err(1000), "it is the same group, which was not known to be it");
        ids.set_lineage(4);
        assert_eq!(ids.may_use(7, 1001), Ok(()));
    }

    #[test]
    fn who_uses_many_ids_displaces_his_own() {
        let mut ids = ClientIds::default();
        ids.note(7, 1000, 1000);
        (100..100 + 2 * ALL as u64).for_each(|id| ids.note(id, 1001, 1001));
        assert_eq!(ids.may_use(7, 1001), Err(1000));
        assert_eq!(ids.used[&1001].len(), PER_USER);
        // Many users that use few each have those displaced that use most.
        for user in 2000..2000 + ALL as u32 {
            ids.note(u64::MAX - u64::from(user), user, user);
        }
        assert!(ids.owners.len() <= ALL && ids.used[&1001].len() < PER_USER, "{}", ids.owners.len());
        assert_eq!(ids.owners.len(), ids.used.values().map(VecDeque::len).sum::<usize>());
        // What is used again is not the oldest any more.
        let mut ids = ClientIds::default();
        (0..PER_USER as u64).for_each(|id| ids.note(id, 5, 5));
        ids.note(0, 5, 5);
        ids.note(u64::MAX, 5, 5);
        assert_eq!((ids.may_use(0, 6), ids.may_use(1, 6)), (Err(5), Ok(())));
    }
}
