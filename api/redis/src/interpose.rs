//! Functions of the C library that a loaded program calls, replaced in that program: its calls go through a table of addresses (the *global offset table*
//! of ELF), and an entry of that table is written here. Neither the program's code nor the library changes, and others that call the library do not notice.
//!
//! Only `unsafe` that concerns the format is here; it is tested on the test's own executable.

use std::ffi::{CStr, c_char, c_int, c_void};

/// `DT_*` of the dynamic section, of the ELF specification.
const SYMBOLS: u64 = 6;
const STRINGS: u64 = 5;
const RELOCATIONS: u64 = 7;
const RELOCATIONS_LEN: u64 = 8;
const JUMPS: u64 = 23;
const JUMPS_LEN: u64 = 2;

/// Relocations that are filled with the address of a function: a jump slot, an entry of the table, a plain pointer.
#[cfg(target_arch = "x86_64")]
const FILLED: [u32; 3] = [7, 6, 1];
#[cfg(target_arch = "aarch64")]
const FILLED: [u32; 3] = [1026, 1025, 257];

/// A function, and what is called in its place.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// As the program names it.
    pub name: &'static CStr,
    /// A function of the same type.
    pub function: *const c_void,
}

/// Replaces functions in all loaded objects that `is_meant` names: the program itself has an empty name. Says how many entries were written for each function.
///
/// # Safety
/// Each function has the type of the one that it replaces, lives for ever, and no other thread of those objects replaces anything at the same time.
pub unsafe fn replace(is_meant: &dyn Fn(&str) -> bool, replacements: &[Replacement]) -> Vec<usize> {
    let mut work = Work { is_meant, replacements, written: vec![0; replacements.len()] };
    // SAFETY: the function is given `work`, which lives until the call has ended.
    unsafe { libc::dl_iterate_phdr(Some(on_object), (&raw mut work).cast()) };
    work.written
}

struct Work<'a> {
    is_meant: &'a dyn Fn(&str) -> bool,
    replacements: &'a [Replacement],
    written: Vec<usize>,
}

unsafe extern "C" fn on_object(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: what `replace` handed over, and what the loader says of an object.
    let (work, info) = unsafe { (&mut *data.cast::<Work<'_>>(), &*info) };
    let path = if info.dlpi_name.is_null() {
        String::new()
    } else {
        // SAFETY: the loader's name of the object, which ends with zero.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned()
    };
    if (work.is_meant)(path.rsplit('/').next().unwrap_or_default()) {
        // SAFETY: as the caller of `replace` says.
        unsafe { replace_in(info, work) };
    }
    0
}

/// The tables of one object.
#[derive(Default)]
struct Tables {
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    relocations: [(*const libc::Elf64_Rela, usize); 2],
}

/// # Safety
/// The object is loaded, and the loader is done with it.
unsafe fn tables(base: u64, dynamic: *const [u64; 2]) -> Tables {
    let mut tables = Tables::default();
    // Position-independent objects of some loaders keep offsets there, others addresses.
    let address = |value: u64| if value < base { base + value } else { value } as *const c_void;
    let len = |bytes: u64| bytes as usize / size_of::<libc::Elf64_Rela>();
    for at in 0.. {
        // SAFETY: the section ends with a zero tag.
        let [tag, value] = unsafe { *dynamic.add(at) };
        match tag {
            0 => break,
            SYMBOLS => tables.symbols = address(value).cast(),
            STRINGS => tables.strings = address(value).cast(),
            RELOCATIONS => tables.relocations[0].0 = address(value).cast(),
            RELOCATIONS_LEN => tables.relocations[0].1 = len(value),
            JUMPS => tables.relocations[1].0 = address(value).cast(),
            JUMPS_LEN => tables.relocations[1].1 = len(value),
            _ => {}
        }
    }
    tables
}

/// # Safety
/// As [`replace`].
unsafe fn replace_in(info: &libc::dl_phdr_info, work: &mut Work<'_>) {
    // SAFETY: the loader says how many there are.
    let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let Some(dynamic) = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC) else { return };
    // SAFETY: the segment is loaded.
    let tables = unsafe { tables(info.dlpi_addr, (info.dlpi_addr + dynamic.p_vaddr) as *const [u64; 2]) };
    if tables.symbols.is_null() || tables.strings.is_null() {
        return;
    }
    for (first, len) in tables.relocations.into_iter().filter(|(first, _)| !first.is_null()) {
        for at in 0..len {
            // SAFETY: within the table.
            let relocation = unsafe { &*first.add(at) };
            if !FILLED.contains(&(relocation.r_info as u32)) || relocation.r_addend != 0 {
                continue;
            }
            // SAFETY: the relocation names a symbol of this object, and the symbol a text.
            let name = unsafe {
                let symbol = &*tables.symbols.add((relocation.r_info >> 32) as usize);
                CStr::from_ptr(tables.strings.add(symbol.st_name as usize))
            };
            if let Some(which) = work.replacements.iter().position(|replacement| replacement.name == name) {
                let entry = (info.dlpi_addr + relocation.r_offset) as *mut *const c_void;
                // SAFETY: the entry holds the address of that function.
                if unsafe { write_entry(entry, work.replacements[which].function) } {
                    work.written[which] += 1;
                }
            }
        }
    }
}

/// Writes an entry, whose page the loader has made read-only (*relro*), and makes the page read-only again if it was.
///
/// # Safety
/// It is an entry of the table.
unsafe fn write_entry(entry: *mut *const c_void, function: *const c_void) -> bool {
    // SAFETY: no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = (entry as usize & !(page - 1)) as *mut c_void;
    let was_read_only = is_read_only(entry as usize);
    // SAFETY: the page of the entry; it stays readable, and nothing executes in it. An aligned pointer is written at once for other threads.
    unsafe {
        if was_read_only && libc::mprotect(start, page, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return false;
        }
        (*entry.cast::<std::sync::atomic::AtomicPtr<c_void>>()).store(function.cast_mut(), std::sync::atomic::Ordering::Release);
        if was_read_only {
            libc::mprotect(start, page, libc::PROT_READ);
        }
    }
    true
}

fn is_read_only(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let holds = |line: &&str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        (start..end).contains(&address).then_some(())
    };
    maps.lines().find(|line| holds(line).is_some()).is_none_or(|line| line.split(' ').nth(1) != Some("rw-p"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static CALLED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn in_its_place(name: *const c_char) -> *mut c_char {
        CALLED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { real(name) }
    }

    unsafe fn real(name: *const c_char) -> *mut c_char {
        // SAFETY: the library's own function, found by its name.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"secure_getenv".as_ptr());
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> *mut c_char>(found)(name)
        }
    }

    unsafe extern "C" {
        fn secure_getenv(name: *const c_char) -> *mut c_char;
    }

    #[test]
    fn a_call_of_this_program_goes_elsewhere_and_unknown_functions_are_not_found() {
        let replacements = [
            Replacement { name: c"secure_getenv", function: in_its_place as *const c_void },
            Replacement { name: c"there_is_no_such_function", function: in_its_place as *const c_void },
        ];
        // SAFETY: the same type; this test alone replaces something.
        let written = unsafe { replace(&|name| name.is_empty(), &replacements) };
        assert!(written[0] >= 1 && written[1] == 0, "{written:?}");
        // SAFETY: a text that ends with zero.
        let path = unsafe { secure_getenv(c"PATH".as_ptr()) };
        assert!(!path.is_null());
        assert_eq!(CALLED.load(Ordering::Relaxed), 1);
        // SAFETY: as above; nothing is meant.
        assert_eq!(unsafe { replace(&|_| false, &replacements) }, [0, 0]);
    }
}
