//! The gates of a host's fence, as its kernel keeps them: they outlive the agent.

/// What leaves a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gates {
    /// Everything: nothing was promised.
    #[default]
    NotArmed,
    /// Everything up to t_valid; the first packet after it closes them for good.
    Open {
        /// t_valid.
        valid_ns: u64,
    },
    /// Nothing.
    Closed,
}

impl Gates {
    /// Whether a packet may leave now.
    #[must_use]
    pub const fn pass(self, now_ns: u64) -> bool {
        match self {
            Gates::NotArmed => true,
            Gates::Open { valid_ns } => now_ns <= valid_ns,
            Gates::Closed => false,
        }
    }

    /// A packet comes by: what ran out is closed from now on.
    pub const fn look(&mut self, now_ns: u64) {
        if !self.pass(now_ns) {
            *self = Gates::Closed;
        }
    }

    /// They stay open longer, if they are open yet. Whether they are.
    pub const fn extend(&mut self, now_ns: u64, valid_ns: u64) -> bool {
        self.look(now_ns);
        if matches!(self, Gates::Closed) {
            return false;
        }
        *self = Gates::Open { valid_ns };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_out_stays_closed() {
        let mut gates = Gates::default();
        assert!(gates.pass(u64::MAX) && gates.extend(5, 10) && gates.extend(10, 20));
        assert!(gates.pass(20) && !gates.pass(21));
        assert!(!gates.extend(21, 30) && !gates.pass(0));
    }
}
