//! Programs of fences that nobody keeps any more: their pins are gone, and what they were attached to still asks their gates, which nobody extends.
//!
//! Everything here needs CAP_SYS_ADMIN, without which the kernel opens neither programs nor maps by their numbers.

use crate::egress;
use crate::fence::{GROUP_PROGRAM, HOST_PROGRAM, cgroup_root, detach_from_cgroup, is_named, program_info, programs_of};
use crate::layout::{GATE_NOT_ARMED, GateRow};
use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

const GATES_MAP: &str = "gates";

/// Opens a program by its number.
pub fn program(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: a number; a descriptor or an error comes back.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: fresh, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The numbers of the maps that a program uses.
pub fn maps_of(program: &OwnedFd) -> Vec<u32> {
    let mut maps = [0u32; 16];
    let asked =
        libbpf_sys::bpf_prog_info { nr_map_ids: maps.len() as u32, map_ids: maps.as_mut_ptr() as u64, ..Default::default() };
    let used = program_info(program, asked).map_or(0, |info| info.nr_map_ids as usize);
    maps[..used.min(maps.len())].to_vec()
}

/// The gates that a program asks.
fn gates_of(program: &OwnedFd) -> Option<MapHandle> {
    let maps = maps_of(program).into_iter().filter_map(|id| MapHandle::from_map_id(id).ok());
    maps.into_iter().find(|map| map.name() == GATES_MAP)
}

/// Whether one of the gates that a program asks may block something. Where that cannot be seen it may.
pub fn may_block(program: &OwnedFd) -> bool {
    let Some(gates) = gates_of(program) else { return true };
    let valid_ns = |slot: u32| {
        let row = gates.lookup(&slot.to_ne_bytes(), MapFlags::ANY).ok().flatten()?;
        row.first_chunk().map(|word| u64::from_ne_bytes(*word))
    };
    (0..gates.max_entries()).any(|slot| valid_ns(slot) != Some(GATE_NOT_ARMED))
}

/// Whether the gates that a program asks are pinned somewhere.
pub fn is_kept(program: &OwnedFd) -> bool {
    let kept = kept();
    maps_of(program).iter().any(|id| kept.contains(id))
}

/// The numbers of all gates that are pinned on a BPF file system of this mount namespace.
fn kept() -> BTreeSet<u32> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let roots = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>()).filter(|w| w.get(2) == Some(&"bpf"));
    let mut todo: Vec<(PathBuf, u32)> = roots.map(|w| (PathBuf::from(w[1]), 0)).collect();
    let mut found = BTreeSet::new();
    while let Some((dir, depth)) = todo.pop() {
        let gates = dir.join(GATES_MAP);
        if let Some(info) = gates.exists().then(|| MapHandle::from_pinned_path(&gates).ok()?.info().ok()).flatten() {
            found.insert(info.info.id);
        }
        if depth < 3 {
            let below = fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
            todo.extend(below.map(|e| (e.path(), depth + 1)));
        }
    }
    found
}

/// Takes away what fences left whose pins are gone: their gates let everything pass from then on, wherever they are asked, and their programs are detached from the
/// interfaces of the calling thread's network namespace and from all cgroups. Fences whose pins can be seen are left alone. Says what was there.
///
/// # Errors
/// Without CAP_SYS_ADMIN.
pub fn remove() -> io::Result<Vec<String>> {
    let (mut programs, kept) = (BTreeMap::new(), kept());
    let mut id = 0;
    // SAFETY: a number that lives across the call.
    while unsafe { libbpf_sys::bpf_prog_get_next_id(id, &raw mut id) } == 0 {
        let program = match program(id) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => continue, // gone meanwhile
            other => other?,
        };
        let info = program_info(&program, libbpf_sys::bpf_prog_info::default())?;
        let ours = is_named(&info, HOST_PROGRAM) || is_named(&info, GROUP_PROGRAM);
        if ours && !maps_of(&program).iter().any(|map| kept.contains(map)) {
            programs.insert(id, program);
        }
    }
    let mut said = Vec::new();
    let open = GateRow { valid_ns: GATE_NOT_ARMED, ..GateRow::default() }.valid_ns.to_ne_bytes();
    for gates in programs.values().filter_map(gates_of) {
        let mut row = vec![0; gates.value_size() as usize];
        row[..open.len()].copy_from_slice(&open);
        for slot in 0..gates.max_entries() {
            gates.update(&slot.to_ne_bytes(), &row, MapFlags::ANY).map_err(io::Error::other)?;
        }
    }
    for (name, ifindex) in interfaces() {
        for id in egress::tcx(ifindex).ok().flatten().unwrap_or_default() {
            if let Some(program) = programs.get(&id) {
                egress::detach_tcx(ifindex, program.as_fd())?;
                said.push(format!("interface {name}: a program of a fence whose pins are lost"));
            }
        }
        if egress::clsact(ifindex).is_some_and(|id| programs.contains_key(&id)) {
            egress::detach_clsact(ifindex)?;
            said.push(format!("interface {name}: a filter of a fence whose pins are lost"));
        }
    }
    let mut todo: Vec<PathBuf> = cgroup_root().into_iter().collect();
    while let Some(dir) = todo.pop() {
        said.extend(remove_from(&dir, &programs)?);
        let below = fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        todo.extend(below.map(|e| e.path()));
    }
    Ok(said)
}

fn remove_from(dir: &Path, programs: &BTreeMap<u32, OwnedFd>) -> io::Result<Option<String>> {
    let Ok(cgroup) = File::open(dir) else { return Ok(None) }; // gone meanwhile
    let attached = programs_of(&cgroup).unwrap_or_default();
    let mut found = attached.iter().filter_map(|id| programs.get(id)).peekable();
    let said = found.peek().map(|_| format!("cgroup {}: a program of a fence whose pins are lost", dir.display()));
    found.try_for_each(|program| detach_from_cgroup(program.as_fd(), &cgroup)).map(|()| said)
}

/// Every interface of this network namespace, with its index.
#[must_use]
pub fn interfaces() -> Vec<(String, u32)> {
    let mut found = Vec::new();
    // SAFETY: no preconditions; the result is checked, and freed below.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return found;
    }
    let mut at = list;
    // SAFETY: the list ends with an entry whose index is 0 and whose name is null; names are C strings that live as long as it.
    unsafe {
        while (*at).if_index != 0 && !(*at).if_name.is_null() {
            let name = std::ffi::CStr::from_ptr((*at).if_name).to_string_lossy().into_owned();
            found.push((name, (*at).if_index));
            at = at.add(1);
        }
        libc::if_freenameindex(list);
    }
    found
}
