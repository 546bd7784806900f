//! Network namespaces of tests, with a /sys of their own.

/// Runs this on a thread in a new network namespace; `None` and a word where that is not permitted.
pub fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    let enter = || {
        // SAFETY: unshare has no preconditions; the strings end with a zero, and a mount of another file system needs no data.
        unsafe {
            libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(c"sys".as_ptr(), c"/sys".as_ptr(), c"sysfs".as_ptr(), 0, std::ptr::null()) == 0
        }
    };
    let inside = || {
        if !enter() {
            println!("SKIPPED: no namespace: {}", std::io::Error::last_os_error());
            return None;
        }
        assert!(ip("link set lo up"));
        Some(work())
    };
    std::thread::scope(|s| s.spawn(inside).join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
}

/// Whether iproute2 did this in the namespace of this thread.
pub fn ip(command: &str) -> bool {
    std::process::Command::new("ip").args(command.split(' ')).output().is_ok_and(|out| out.status.success())
}
