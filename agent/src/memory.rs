//! How the process returns memory to the kernel.

use fide_proto::services::groups::large::PIECE_LEN;

/// Allocations of at least this many bytes are mappings of their own: the pieces of states are.
const OWN_MAPPING: usize = PIECE_LEN;

/// Has the memory of each piece of a state returned to the kernel when that piece is dropped. To be
/// called before the first thread starts.
///
/// The loop's thread allocates the pieces, in malloc's arena of that thread, and glibc returns the
/// pages of such an arena by `MADV_DONTNEED`, which the kernel refuses for locked memory (the
/// process locks its own, so that heartbeats wait for no page). So what ordinary users handed in
/// stayed in the process after it was dropped. A mapping is returned by `munmap`, locked or not, by
/// the thread that drops it, and without the lock of the arena, for which the loop's thread waited
/// meanwhile.
///
/// The threshold is not lower: what a heartbeat, a packet or an entry of usual size needs stays in
/// the heap, whose pages are there already. A threshold that is set stays: glibc raises its own one
/// to the size of whatever mapping was freed last.
#[cfg(target_env = "gnu")]
pub fn map_pieces_of_states() {
    // SAFETY: no pointers; no other thread allocates meanwhile.
    let _ = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING as libc::c_int) }; // it takes any below 32 MiB
}

/// Other allocators are left as they are.
#[cfg(not(target_env = "gnu"))]
pub const fn map_pieces_of_states() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Bytes of this process' mappings of malloc's own, and whether a piece of a state is among
    /// them.
    fn mapped() -> usize {
        // SAFETY: no pointers.
        unsafe { libc::mallinfo2() }.hblkhd
    }

    #[test]
    fn the_pieces_of_a_state_are_mappings_and_smaller_allocations_are_not() {
        map_pieces_of_states();
        // On a thread of its own: that is where the heap of an arena is not the program's.
        std::thread::spawn(|| {
            const PIECES: usize = 4096;
            let before = mapped();
            let small: Vec<Vec<u8>> = (0..PIECES).map(|_| Vec::with_capacity(PIECE_LEN - 64)).collect();
            let with_small = mapped().saturating_sub(before);
            let pieces: Vec<Box<[u8]>> = (0..PIECES).map(|_| vec![1; PIECE_LEN].into_boxed_slice()).collect();
            let with_pieces = mapped().saturating_sub(before);
            drop((small, pieces));
            let after = mapped().saturating_sub(before);
            // Other tests of the process allocate, too, but not that much.
            let all = PIECES * PIECE_LEN;
            assert!(with_small < all / 2, "{with_small}");
            assert!(with_pieces >= all, "{with_pieces}");
            assert!(after < all / 2, "{after}");
        })
        .join()
        .unwrap();
    }
}
