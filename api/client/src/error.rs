//! What can go wrong, for programs ([`Error::code`]) and for people (its text).

use fide_wire::control::{ErrorCode, Refused};
use std::io;
use std::path::PathBuf;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody answers at the socket.
    #[error(
        "no agent is listening on {}: start it with systemctl start fided, or name its socket with {}",
        path.display(),
        fide_wire::control::SOCKET_ENV
    )]
    NoAgent {
        /// The socket tried.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The socket's file permissions keep this user out.
    #[error("no permission to talk to the agent on {}: its owner and group decide who may (see ls -l, and `id`)", path.display())]
    Permission {
        /// The socket tried.
        path: PathBuf,
    },
    /// Client and agent come from different releases.
    #[error("the agent speaks protocol {agent}, this client {client}: install the same release of both")]
    Version {
        /// What the agent speaks.
        agent: u32,
        /// What this library speaks.
        client: u32,
    },
    /// The agent said no.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The agent sent what is no reply, or not the reply to what was asked. The connection is closed.
    #[error("the agent broke the protocol ({0}); the connection was closed")]
    Protocol(String),
    /// The caller asked for something that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// More bytes than may be sent.
    #[error("{size} bytes are too many: at most {limit} are granted")]
    TooLarge {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The piggyback bridge has no room: messages are produced faster than heartbeats carry them away.
    #[error("the piggyback bridge is full: one message leaves with each heartbeat, try again after the next")]
    Full,
    /// As many proposals wait for their entries as may.
    #[error("as many proposals wait as may: read the group's entries, and propose again")]
    Busy,
    /// The connection to the agent is over. Says nothing about anything that is monitored.
    #[error("the connection to the agent is lost")]
    Disconnected,
    /// The agent did not answer in time. The connection is closed, because a late answer could not be told from the next one.
    #[error("the agent did not answer within {seconds} s; the connection was closed")]
    NoAnswer {
        /// How long it was waited for.
        seconds: f64,
    },
    /// The event ring holds what no ring can hold; nothing more can be read from it.
    #[error("the event ring is damaged ({0}); open a new connection")]
    Ring(&'static str),
    /// A heartbeat is not known to have left in time; t_valid stays as it was.
    #[error("the heartbeat is not known to have left within {seconds} s: t_valid was not extended, send another in time")]
    NotSent {
        /// How long it was waited for.
        seconds: f64,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// Which.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// The reason for programs; its number, negated, is what `libfide` returns.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::NoAgent { .. } | Error::Disconnected | Error::NoAnswer { .. } => ErrorCode::Disconnected,
            Error::Permission { .. } => ErrorCode::Permission,
            Error::Version { .. } => ErrorCode::Version,
            Error::Refused(refused) => refused.code,
            Error::Protocol(_) | Error::Invalid(_) => ErrorCode::Invalid,
            Error::TooLarge { .. } => ErrorCode::TooLarge,
            Error::NotSent { .. } => ErrorCode::NotSent,
            Error::Full | Error::Busy => ErrorCode::Full,
            Error::Ring(_) | Error::System { .. } => ErrorCode::System,
        }
    }
}

/// For `map_err`: a failed system call.
pub(crate) fn system(call: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::System { call, source }
}
