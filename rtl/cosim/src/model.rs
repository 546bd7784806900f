//! The Verilator model, loaded at run time: `scripts/rtl model` builds it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

/// Time of one clock, unless it is said to be another ([`In::time_step`]).
pub const CLK_NS: u32 = 4;

/// What goes in at one clock.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "named as the ports of rtl/cosim/verilator/fide_cosim_top.sv")]
pub struct In {
    pub rx_keep: [u64; 2],
    pub req_keep: u64,
    pub rx_data: [[u8; 64]; 2],
    pub req_data: [u8; 64],
    pub rx_valid: u8,
    pub rx_last: u8,
    pub rx_user: u8,
    pub req_valid: u8,
    pub req_last: u8,
    pub req_user: u8,
    pub tx_ready: u8,
    pub dec_ready: u8,
    pub awvalid: u8,
    pub bready: u8,
    pub arvalid: u8,
    pub rready: u8,
    pub rst_n: u8,
    pub pad: [u8; 3],
    pub awaddr: u32,
    pub wdata: u32,
    pub araddr: u32,
    pub time_step: u32,
}

/// What the outputs are before the edge of that clock.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "named as the ports of rtl/cosim/verilator/fide_cosim_top.sv")]
pub struct Out {
    pub tx_keep: [u64; 2],
    pub dec_keep: u64,
    pub time: u64,
    pub round: u64,
    pub next: u64,
    pub decided: u64,
    pub tx_data: [[u8; 64]; 2],
    pub dec_data: [u8; 64],
    pub refused: u32,
    pub rdata: u32,
    pub members: u16,
    pub crashed: u16,
    pub tx_user: u16,
    pub width: u16,
    pub tx_valid: u8,
    pub tx_last: u8,
    pub dec_valid: u8,
    pub dec_last: u8,
    pub dec_user: u8,
    pub bvalid: u8,
    pub bresp: u8,
    pub awready: u8,
    pub rvalid: u8,
    pub rresp: u8,
    pub arready: u8,
    pub running: u8,
    pub halted: u8,
    pub has_leader: u8,
    pub leader: u8,
    pub awaiting: u8,
    pub heard: u8,
    pub tells_exit: u8,
    pub tells_ready: u8,
    pub ready_to: u8,
    pub step_live: u8,
    pub step_event: u8,
    pub step_left: u8,
    pub event: u8,
    pub event_path: u8,
    pub admit: u8,
    pub room: u8,
    pub judged: u8,
    pub busy: u8,
    pub pad2: [u8; 3],
}

impl In {
    /// Nothing but ready outputs.
    #[must_use]
    pub fn idle() -> Self {
        // SAFETY: integers and arrays of them, for which zeros are a value.
        let mut zero: Self = unsafe { std::mem::zeroed() };
        (zero.tx_ready, zero.dec_ready, zero.bready, zero.rready, zero.rst_n) = (3, 1, 1, 1, 1);
        zero.time_step = CLK_NS;
        zero
    }

    /// Puts a word of a frame, at most [`Model::word_bytes`], on the stream of a path, or of requests.
    pub fn word(&mut self, path: Option<usize>, bytes: &[u8], last: bool) {
        let keep = if bytes.len() == 64 { u64::MAX } else { (1 << bytes.len()) - 1 };
        if let Some(path) = path {
            self.rx_data[path][..bytes.len()].copy_from_slice(bytes);
            self.rx_keep[path] = keep;
            self.rx_valid |= 1 << path;
            self.rx_last |= u8::from(last) << path;
        } else {
            self.req_data[..bytes.len()].copy_from_slice(bytes);
            self.req_keep = keep;
            self.req_valid = 1;
            self.req_last = last.into();
        }
    }
}

/// The library.
#[derive(Clone, Copy)]
pub struct Library {
    new: unsafe extern "C" fn() -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    step: unsafe extern "C" fn(*mut c_void, *const In, *mut Out),
    trace: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
}

impl Library {
    /// Loads it; it stays for the life of the process.
    ///
    /// # Errors
    /// Why it cannot be, as a sentence.
    pub fn load(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the path is a string; the library's initialisers are Verilator's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlerror gives a string after a failure.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(format!("{}: {}", path.display(), why.to_string_lossy()));
        }
        let find = |name: &CStr| {
            // SAFETY: the handle is open.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if found.is_null() {
                Err(format!("{}: no {name:?}: build it again (scripts/rtl model)", path.display()))
            } else {
                Ok(found)
            }
        };
        let (abi, new, free) = (find(c"fide_sim_abi")?, find(c"fide_sim_new")?, find(c"fide_sim_free")?);
        let (step, trace) = (find(c"fide_sim_step")?, find(c"fide_sim_trace")?);
        // SAFETY: these are the functions of rtl/cosim/verilator/shim.cpp, with these signatures.
        unsafe {
            let abi: unsafe extern "C" fn() -> u64 = std::mem::transmute(abi);
            let expected = (size_of::<In>() as u64) << 32 | size_of::<Out>() as u64;
            if abi() != expected {
                return Err(format!("{} is of another version: build it again (scripts/rtl model)", path.display()));
            }
            Ok(Self {
                new: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(new),
                free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(free),
                step: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *const In, *mut Out)>(step),
                trace: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int>(trace),
            })
        }
    }

    /// The library that `FIDE_RTL_MODEL` names.
    ///
    /// # Errors
    /// Why there is none.
    pub fn from_env() -> Result<Self, String> {
        let path = std::env::var_os("FIDE_RTL_MODEL").ok_or("FIDE_RTL_MODEL is not set: run scripts/rtl")?;
        Self::load(Path::new(&path))
    }
}

/// One engine.
pub struct Model {
    library: Library,
    sim: *mut c_void,
    /// Clocks since it was made.
    pub clocks: u64,
    /// Bytes of a word of its streams.
    pub word_bytes: usize,
}

// SAFETY: a model has no state outside of itself, and is used by one thread at a time.
unsafe impl Send for Model {}

impl Model {
    /// An engine out of reset.
    #[must_use]
    pub fn new(library: Library) -> Self {
        // SAFETY: makes a model.
        let sim = unsafe { (library.new)() };
        let mut model = Self { library, sim, clocks: 0, word_bytes: 64 };
        model.reset();
        model.word_bytes = usize::from(model.step(&In { rst_n: 0, ..In::idle() }).width) / 8;
        assert!(
            [8, 16, 32, 64].contains(&model.word_bytes),
            "the model is of another version: build it again (scripts/rtl model)"
        );
        model
    }

    /// Holds it in reset for some clocks.
    pub fn reset(&mut self) {
        for _ in 0..3 {
            self.step(&In { rst_n: 0, ..In::idle() });
        }
    }

    /// Writes waveforms from here on, if the model was built with them.
    pub fn trace(&mut self, path: &Path) -> bool {
        let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else { return false };
        // SAFETY: the model lives.
        unsafe { (self.library.trace)(self.sim, name.as_ptr()) == 1 }
    }

    /// One clock.
    pub fn step(&mut self, input: &In) -> Out {
        self.clocks += 1;
        // SAFETY: integers and arrays of them; the model lives, and fills what it says is valid.
        unsafe {
            let mut out: Out = std::mem::zeroed();
            (self.library.step)(self.sim, input, &raw mut out);
            out
        }
    }

    /// Writes a register and waits for the answer: whether it was taken.
    pub fn write(&mut self, at: u16, value: u32) -> bool {
        self.step(&In { awvalid: 1, awaddr: at.into(), wdata: value, ..In::idle() });
        let out = self.step(&In::idle());
        assert_eq!(out.bvalid, 1, "a write is answered in the next clock");
        out.bresp == 0
    }

    /// Reads a register; nothing where there is none.
    pub fn read(&mut self, at: u16) -> Option<u32> {
        self.step(&In { arvalid: 1, araddr: at.into(), ..In::idle() });
        let out = self.step(&In::idle());
        assert_eq!(out.rvalid, 1, "a read is answered in the next clock");
        (out.rresp == 0).then_some(out.rdata)
    }

    /// Reads a register of 64 bits.
    pub fn read_long(&mut self, at: u16) -> Option<u64> {
        let low = self.read(at)?;
        Some(u64::from(self.read(at + 4)?) << 32 | u64::from(low))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: made by new(), and not used afterwards.
        unsafe { (self.library.free)(self.sim) }
    }
}
