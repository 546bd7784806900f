//! What a configuration says of the contract and of the socket's file, at the start and after a reload.

use crate::config::{Config, Profile, SocketConfig};
use anyhow::{Context, bail};
use fide_proto::node::calibration::{self, Setting};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

/// How the contract is derived.
#[must_use]
pub fn calibration(config: &Config) -> calibration::Config {
    let mut c = match config.profile {
        Profile::Shared => calibration::Config::shared(),
        Profile::Dedicated => calibration::Config::dedicated(),
    };
    let pins = &config.contract;
    if let Some(ns) = pins.lambda_min_ns {
        c.lambda = Setting::Pinned(ns);
    }
    if let Some(ns) = pins.delta_max_ns {
        c.delta = Setting::Pinned(ns);
    }
    if let Some(ns) = pins.delta_floor_ns {
        c.floor_ns = ns;
    }
    if let Some(ns) = pins.delta_ceiling_ns {
        c.ceiling_ns = Some(ns);
    }
    c
}

/// Gives the socket its mode and group.
///
/// # Errors
/// In words.
pub fn set_permissions(socket: &SocketConfig) -> anyhow::Result<()> {
    let path = &socket.path;
    // By a descriptor of the socket itself: a link that came in its place must not lead elsewhere.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path);
    let file = file.with_context(|| format!("the socket {} is gone", path.display()))?;
    if !file.metadata()?.file_type().is_socket() {
        bail!("{} is no socket any more", path.display());
    }
    let itself = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if let Some(gid) = crate::access::group_id(&socket.group) {
        std::os::unix::fs::chown(&itself, None, Some(gid))
            .with_context(|| format!("{} cannot be given to group {}", path.display(), socket.group))?;
    } else if socket.group_is_set {
        bail!("group {} of the socket does not exist: create it, or name another in [socket]", socket.group);
    }
    std::fs::set_permissions(&itself, std::fs::Permissions::from_mode(socket.mode))
        .with_context(|| format!("{} cannot be given mode {:o}", path.display(), socket.mode))
}
