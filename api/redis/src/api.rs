//! The functions of Redis that a module calls, from Redis 7.0 on and in Valkey. They are looked up by name when the module is loaded.
//!
//! Everything here belongs to the server's main thread.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_long, c_longlong, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

/// `REDISMODULE_OK`.
pub const OK: c_int = 0;
/// `REDISMODULE_ERR`.
pub const ERR: c_int = 1;
/// `REDISMODULE_CMDFILTER_NOSELF`: what this module calls itself is not filtered, nor what a script does that it calls.
pub const FILTER_NOT_OWN: c_int = 1;
/// `REDISMODULE_EVENTLOOP_READABLE`.
pub const READABLE: c_int = 1;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => { $($(#[$doc])* #[repr(C)] #[derive(Debug)] pub struct $name { _private: [u8; 0] })* };
}
opaque! {
    /// `RedisModuleCtx`.
    Ctx
    /// `RedisModuleString`.
    Text
    /// `RedisModuleCallReply`.
    Reply
    /// `RedisModuleCommandFilterCtx`.
    FilterCtx
    /// `RedisModuleServerInfoData`.
    ServerInfo
    /// `RedisModuleInfoCtx`.
    InfoCtx
}

/// `RedisModuleEvent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ServerEvent {
    /// Which kind.
    pub id: u64,
    /// Version of its data.
    pub version: u64,
}

impl ServerEvent {
    /// `RedisModuleEvent_EventLoop`.
    pub const LOOP: Self = Self { id: 15, version: 1 };
    /// `RedisModuleEvent_ModuleChange`.
    pub const MODULES: Self = Self { id: 9, version: 1 };
}

/// A command of this module.
pub type Command = unsafe extern "C" fn(*mut Ctx, *mut *mut Text, c_int) -> c_int;
type Filter = unsafe extern "C" fn(*mut FilterCtx);
type OnEvent = unsafe extern "C" fn(*mut Ctx, ServerEvent, u64, *mut c_void);
type OnReadable = unsafe extern "C" fn(c_int, *mut c_void, c_int);
type OnKey = unsafe extern "C" fn(*mut Ctx, c_int, *const c_char, *mut Text) -> c_int;
type OnInfo = unsafe extern "C" fn(*mut InfoCtx, c_int);

macro_rules! functions {
    ($($name:ident $redis:literal: $type:ty;)*) => {
        struct Functions { $($name: $type),* }
        impl Functions {
            /// # Safety
            /// `ctx` is what `RedisModule_OnLoad` was given.
            unsafe fn look_up(ctx: *mut Ctx) -> Result<Self, &'static str> {
                type Look = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
                // SAFETY: a context begins with the function that looks up all others (redismodule.h, RedisModule_Init).
                let look: Look = unsafe { *ctx.cast::<Look>() };
                Ok(Self { $($name: {
                    let mut found = std::ptr::null_mut::<c_void>();
                    let name = concat!("RedisModule_", $redis, "\0");
                    // SAFETY: a text that ends with zero, and a place for one pointer.
                    let done = unsafe { look(name.as_ptr().cast(), &raw mut found) };
                    if done != OK || found.is_null() {
                        return Err($redis);
                    }
                    // SAFETY: redismodule.h declares that function with this type.
                    unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
                }),* })
            }
        }
    };
}

functions! {
    set_attributes "SetModuleAttribs": unsafe extern "C" fn(*mut Ctx, *const c_char, c_int, c_int);
    create_command "CreateCommand": unsafe extern "C" fn(*mut Ctx, *const c_char, Command, *const c_char, c_int, c_int, c_int) -> c_int;
    register_filter "RegisterCommandFilter": unsafe extern "C" fn(*mut Ctx, Filter, c_int) -> *mut c_void;
    filter_get "CommandFilterArgGet": unsafe extern "C" fn(*mut FilterCtx, c_int) -> *mut Text;
    filter_count "CommandFilterArgsCount": unsafe extern "C" fn(*mut FilterCtx) -> c_int;
    is_name_busy "IsModuleNameBusy": unsafe extern "C" fn(*const c_char) -> c_int;
    filter_insert "CommandFilterArgInsert": unsafe extern "C" fn(*mut FilterCtx, c_int, *mut Text) -> c_int;
    create_string "CreateString": unsafe extern "C" fn(*mut Ctx, *const c_char, usize) -> *mut Text;
    free_string "FreeString": unsafe extern "C" fn(*mut Ctx, *mut Text);
    retain_string "RetainString": unsafe extern "C" fn(*mut Ctx, *mut Text);
    string_bytes "StringPtrLen": unsafe extern "C" fn(*const Text, *mut usize) -> *const c_char;
    call "Call": unsafe extern "C" fn(*mut Ctx, *const c_char, *const c_char, ...) -> *mut Reply;
    free_reply "FreeCallReply": unsafe extern "C" fn(*mut Reply);
    reply_type "CallReplyType": unsafe extern "C" fn(*mut Reply) -> c_int;
    reply_bytes "CallReplyStringPtr": unsafe extern "C" fn(*mut Reply, *mut usize) -> *const c_char;
    reply_number "CallReplyInteger": unsafe extern "C" fn(*mut Reply) -> c_longlong;
    reply_len "CallReplyLength": unsafe extern "C" fn(*mut Reply) -> usize;
    reply_at "CallReplyArrayElement": unsafe extern "C" fn(*mut Reply, usize) -> *mut Reply;
    reply_with_error "ReplyWithError": unsafe extern "C" fn(*mut Ctx, *const c_char) -> c_int;
    reply_with_simple "ReplyWithSimpleString": unsafe extern "C" fn(*mut Ctx, *const c_char) -> c_int;
    reply_with_array "ReplyWithArray": unsafe extern "C" fn(*mut Ctx, c_long) -> c_int;
    reply_with_bytes "ReplyWithStringBuffer": unsafe extern "C" fn(*mut Ctx, *const c_char, usize) -> c_int;
    reply_with_number "ReplyWithLongLong": unsafe extern "C" fn(*mut Ctx, c_longlong) -> c_int;
    flags "GetContextFlags": unsafe extern "C" fn(*mut Ctx) -> c_int;
    detached "GetDetachedThreadSafeContext": unsafe extern "C" fn(*mut Ctx) -> *mut Ctx;
    loop_add "EventLoopAdd": unsafe extern "C" fn(c_int, c_int, OnReadable, *mut c_void) -> c_int;
    loop_del "EventLoopDel": unsafe extern "C" fn(c_int, c_int) -> c_int;
    subscribe_keys "SubscribeToKeyspaceEvents": unsafe extern "C" fn(*mut Ctx, c_int, OnKey) -> c_int;
    subscribe "SubscribeToServerEvent": unsafe extern "C" fn(*mut Ctx, ServerEvent, OnEvent) -> c_int;
    server_info "GetServerInfo": unsafe extern "C" fn(*mut Ctx, *const c_char) -> *mut ServerInfo;
    free_info "FreeServerInfo": unsafe extern "C" fn(*mut Ctx, *mut ServerInfo);
    info_number "ServerInfoGetFieldUnsigned": unsafe extern "C" fn(*mut ServerInfo, *const c_char, *mut c_int) -> c_ulonglong;
    info_string "ServerInfoGetFieldC": unsafe extern "C" fn(*mut ServerInfo, *const c_char) -> *const c_char;
    register_info "RegisterInfoFunc": unsafe extern "C" fn(*mut Ctx, OnInfo) -> c_int;
    info_section "InfoAddSection": unsafe extern "C" fn(*mut InfoCtx, *const c_char) -> c_int;
    info_text "InfoAddFieldCString": unsafe extern "C" fn(*mut InfoCtx, *const c_char, *const c_char) -> c_int;
    info_count "InfoAddFieldULongLong": unsafe extern "C" fn(*mut InfoCtx, *const c_char, c_ulonglong) -> c_int;
    log "Log": unsafe extern "C" fn(*mut Ctx, *const c_char, *const c_char, ...);
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

fn f() -> &'static Functions {
    FUNCTIONS.get().expect("the module is loaded")
}

fn c(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("no zero is left")
}

/// Looks all functions up, and names the module. `false`: a module of this name is loaded already.
///
/// # Safety
/// `ctx` is what `RedisModule_OnLoad` was given.
///
/// # Errors
/// The name of a function that this server has not got.
pub unsafe fn init(ctx: *mut Ctx, name: &str, version: c_int) -> Result<bool, &'static str> {
    // SAFETY: as the caller says.
    let functions = unsafe { Functions::look_up(ctx) }?;
    let functions = FUNCTIONS.get_or_init(|| functions);
    // SAFETY: a text that ends with zero.
    if unsafe { (functions.is_name_busy)(c(name).as_ptr()) } != 0 {
        return Ok(false);
    }
    // SAFETY: a context of this server; the name is copied.
    unsafe { (functions.set_attributes)(ctx, c(name).as_ptr(), version, 1) };
    Ok(true)
}

/// The bytes of a text.
///
/// # Safety
/// It lives as long as it is looked at.
pub unsafe fn bytes<'a>(text: *const Text) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: a text of this server.
    unsafe {
        let start = (f().string_bytes)(text, &raw mut len);
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// A reply of [`Api::call`], freed when it is dropped.
#[derive(Debug)]
pub struct Owned(*mut Reply);

impl Owned {
    /// `REDISMODULE_REPLY_ERROR`.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        // SAFETY: a reply that lives.
        (unsafe { (f().reply_type)(self.0) } == 1).then(|| text_of(self.0))
    }

    /// The elements, if it is an array, with theirs.
    #[must_use]
    pub fn tree(&self) -> Tree {
        tree(self.0)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it is ours, and freed once.
        unsafe { (f().free_reply)(self.0) };
    }
}

/// A reply in words.
#[derive(Debug)]
pub enum Tree {
    /// An array or a set.
    Array(Vec<Tree>),
    /// A number.
    Number(i64),
    /// Anything else; nulls are empty.
    Text(String),
}

impl Tree {
    /// The element at this place, if there is one.
    #[must_use]
    pub fn at(&self, at: usize) -> Option<&Tree> {
        match self {
            Self::Array(elements) => elements.get(at),
            Self::Number(_) | Self::Text(_) => None,
        }
    }

    /// Its elements.
    #[must_use]
    pub fn elements(&self) -> &[Tree] {
        match self {
            Self::Array(elements) => elements,
            Self::Number(_) | Self::Text(_) => &[],
        }
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Array(_) | Self::Number(_) => "",
            Self::Text(text) => text,
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Array(_) | Self::Text(_) => None,
        }
    }
}

fn text_of(reply: *mut Reply) -> String {
    let mut len = 0;
    // SAFETY: a reply that lives; the bytes are copied.
    unsafe {
        let start = (f().reply_bytes)(reply, &raw mut len);
        if start.is_null() {
            return String::new();
        }
        String::from_utf8_lossy(std::slice::from_raw_parts(start.cast(), len)).into_owned()
    }
}

fn tree(reply: *mut Reply) -> Tree {
    if reply.is_null() {
        return Tree::Text(String::new());
    }
    // SAFETY: a reply that lives; its elements live with it. 2 is a number, 3 an array, 6 a set (RESP3).
    unsafe {
        match (f().reply_type)(reply) {
            2 => Tree::Number((f().reply_number)(reply)),
            3 | 6 => Tree::Array((0..(f().reply_len)(reply)).map(|at| tree((f().reply_at)(reply, at))).collect()),
            _ => Tree::Text(text_of(reply)),
        }
    }
}

/// A context, and what can be done with it.
#[derive(Clone, Copy, Debug)]
pub struct Api(pub *mut Ctx);

impl Api {
    /// # Panics
    /// If the server refuses, which it does for a name that is taken.
    pub fn command(self, name: &str, command: Command, flags: &str) {
        // SAFETY: the texts are copied.
        let done = unsafe { (f().create_command)(self.0, c(name).as_ptr(), command, c(flags).as_ptr(), 0, 0, 0) };
        assert_eq!(done, OK, "the command {name}");
    }

    /// Every command passes this filter.
    pub fn filter(self, filter: Filter) {
        // SAFETY: the filter is for ever: this module is not unloaded.
        unsafe { (f().register_filter)(self.0, filter, FILTER_NOT_OWN) };
    }

    /// Calls a command with these arguments. With `effects`, what it changes goes to replicas and into the append-only file.
    #[must_use]
    pub fn call(self, name: &str, arguments: &[&str]) -> Owned {
        let name = c(name);
        let texts: Vec<*mut Text> = arguments.iter().map(|text| self.text(text.as_bytes())).collect();
        // SAFETY: "v" takes an array of texts and its length.
        let reply = unsafe { (f().call)(self.0, name.as_ptr(), c"Ev".as_ptr(), texts.as_ptr(), texts.len()) };
        // SAFETY: made above, and not used any more.
        texts.iter().for_each(|text| unsafe { (f().free_string)(self.0, *text) });
        Owned(reply)
    }

    /// Calls a command with texts of the server; what it changes goes nowhere else.
    #[must_use]
    pub fn call_with(self, name: &str, arguments: &[*mut Text]) -> Owned {
        let name = c(name);
        // SAFETY: "v" takes an array of texts and its length; they are the caller's.
        Owned(unsafe { (f().call)(self.0, name.as_ptr(), c"Ev".as_ptr(), arguments.as_ptr(), arguments.len()) })
    }

    /// Whether this command came from this server's primary.
    #[must_use]
    pub fn is_replicated(self) -> bool {
        // REDISMODULE_CTX_FLAGS_REPLICATED.
        // SAFETY: a context.
        unsafe { (f().flags)(self.0) & (1 << 12) != 0 }
    }

    /// A text of the server, to be freed.
    #[must_use]
    pub fn text(self, bytes: &[u8]) -> *mut Text {
        // SAFETY: the bytes are copied.
        unsafe { (f().create_string)(self.0, bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Replies an error: its first word is its code.
    pub fn error(self, text: &str) -> c_int {
        // SAFETY: the text is copied.
        unsafe { (f().reply_with_error)(self.0, c(text).as_ptr()) }
    }

    /// Replies a status.
    pub fn status(self, text: &str) -> c_int {
        // SAFETY: the text is copied.
        unsafe { (f().reply_with_simple)(self.0, c(text).as_ptr()) }
    }

    /// Replies an array; its elements follow.
    pub fn array(self, len: usize) -> c_int {
        // SAFETY: a context.
        unsafe { (f().reply_with_array)(self.0, len as c_long) }
    }

    /// Replies a text.
    pub fn bytes(self, bytes: &[u8]) -> c_int {
        // SAFETY: the bytes are copied.
        unsafe { (f().reply_with_bytes)(self.0, bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Replies a number.
    pub fn number(self, number: i64) -> c_int {
        // SAFETY: a context.
        unsafe { (f().reply_with_number)(self.0, number) }
    }

    /// Whether the server loads its data.
    #[must_use]
    pub fn is_loading(self) -> bool {
        // REDISMODULE_CTX_FLAGS_LOADING.
        // SAFETY: a context.
        unsafe { (f().flags)(self.0) & (1 << 13) != 0 }
    }

    /// A context for what no client asked for.
    #[must_use]
    pub fn detached(self) -> Api {
        // SAFETY: a context; the new one is kept for ever.
        Api(unsafe { (f().detached)(self.0) })
    }

    /// Calls this function in the server's event loop when the descriptor is readable.
    ///
    /// # Panics
    /// If the server refuses the descriptor.
    pub fn on_readable(self, fd: c_int, function: OnReadable) {
        // SAFETY: a function of this module, which stays.
        let done = unsafe { (f().loop_add)(fd, READABLE, function, std::ptr::null_mut()) };
        assert_eq!(done, OK, "a descriptor in the event loop");
    }

    /// Does so no more.
    pub fn off_readable(self, fd: c_int) {
        // SAFETY: no pointers.
        unsafe { (f().loop_del)(fd, READABLE) };
    }

    /// Calls this function for events of the server.
    pub fn on_event(self, event: ServerEvent, function: OnEvent) {
        // SAFETY: a function of this module, which stays.
        unsafe { (f().subscribe)(self.0, event, function) };
    }

    /// Calls this function for each key that the server changes, for whatever reason.
    pub fn on_key(self, function: OnKey) {
        /// `REDISMODULE_NOTIFY_GENERIC` to `_STREAM`, and `_MODULE`.
        const CHANGES: c_int = 0b10_0111_1111_1100;
        // SAFETY: a function of this module, which stays.
        unsafe { (f().subscribe_keys)(self.0, CHANGES, function) };
    }

    /// A number of the section *replication* of INFO.
    #[must_use]
    pub fn replication(self, field: &CStr) -> Option<u64> {
        self.number_of(c"replication", field)
    }

    /// A number of a section of INFO.
    #[must_use]
    pub fn number_of(self, section: &CStr, field: &CStr) -> Option<u64> {
        let mut error = OK;
        // SAFETY: made, read and freed here.
        unsafe {
            let info = (f().server_info)(self.0, section.as_ptr());
            let number = (f().info_number)(info, field.as_ptr(), &raw mut error);
            (f().free_info)(self.0, info);
            (error == OK).then_some(number)
        }
    }

    /// The replication id of its stream.
    #[must_use]
    pub fn replication_id(self) -> String {
        // SAFETY: made, read and freed here; the text is copied.
        unsafe {
            let info = (f().server_info)(self.0, c"replication".as_ptr());
            let text = (f().info_string)(info, c"master_replid".as_ptr());
            let id = if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() };
            (f().free_info)(self.0, info);
            id
        }
    }

    /// A section of INFO.
    pub fn on_info(self, function: OnInfo) {
        // SAFETY: a function of this module, which stays.
        unsafe { (f().register_info)(self.0, function) };
    }

    /// Writes a line into the server's log.
    pub fn log(self, level: &CStr, text: &str) {
        // SAFETY: the format takes one text.
        unsafe { (f().log)(self.0, level.as_ptr(), c"%s".as_ptr(), c(text).as_ptr()) };
    }
}

/// Which module was loaded, or is gone.
///
/// # Safety
/// `data` is what came with [`ServerEvent::MODULES`].
#[must_use]
pub unsafe fn changed_module(data: *mut c_void) -> String {
    /// `RedisModuleModuleChange`.
    #[repr(C)]
    struct Change {
        version: u64,
        name: *const c_char,
        module_version: i32,
    }
    // SAFETY: as the caller says; the name ends with zero.
    unsafe {
        let change = data.cast::<Change>();
        if change.is_null() || (*change).name.is_null() {
            return String::new();
        }
        CStr::from_ptr((*change).name).to_string_lossy().into_owned()
    }
}

/// The name of the command that passes a filter.
///
/// # Safety
/// `ctx` is what the filter was given; the name is not used behind its end.
#[must_use]
pub unsafe fn filtered<'a>(ctx: *mut FilterCtx) -> &'a [u8] {
    // SAFETY: every command has a name.
    unsafe { bytes((f().filter_get)(ctx, 0)) }
}

/// How many words the command has that passes a filter.
///
/// # Safety
/// As [`filtered`].
#[must_use]
pub unsafe fn count(ctx: *mut FilterCtx) -> usize {
    // SAFETY: as the caller says.
    unsafe { (f().filter_count)(ctx) as usize }
}

/// One of its words.
///
/// # Safety
/// As [`filtered`]; it has so many.
#[must_use]
pub unsafe fn word<'a>(ctx: *mut FilterCtx, at: usize) -> &'a [u8] {
    // SAFETY: as the caller says.
    unsafe { bytes((f().filter_get)(ctx, at as c_int)) }
}

/// The arguments behind the name of the command that passes a filter.
///
/// # Safety
/// As [`filtered`].
pub unsafe fn arguments<'a>(ctx: *mut FilterCtx) -> impl Iterator<Item = &'a [u8]> {
    // SAFETY: as the caller says; there are so many.
    unsafe { (1..(f().filter_count)(ctx)).map(move |at| bytes((f().filter_get)(ctx, at))) }
}

/// What passes a filter becomes arguments of this command.
///
/// # Safety
/// `ctx` is what the filter was given; the text was kept for it.
pub unsafe fn redirect(ctx: *mut FilterCtx, command: *mut Text) {
    // SAFETY: as the caller says.
    unsafe {
        (f().retain_string)(std::ptr::null_mut(), command);
        (f().filter_insert)(ctx, 0, command)
    };
}

/// Fields of a section of INFO.
///
/// # Safety
/// `ctx` is what the function was given.
pub unsafe fn info(ctx: *mut InfoCtx, texts: &[(&str, String)], numbers: &[(&str, u64)]) {
    // SAFETY: the texts are copied; an empty name is the module's section.
    unsafe {
        if (f().info_section)(ctx, c"".as_ptr()) != OK {
            return;
        }
        for (name, text) in texts {
            (f().info_text)(ctx, c(name).as_ptr(), c(text).as_ptr());
        }
        for (name, number) in numbers {
            (f().info_count)(ctx, c(name).as_ptr(), *number);
        }
    }
}

// What the C types are on all machines that this is built for.
const _: () = assert!(size_of::<c_uint>() == 4 && size_of::<c_double>() == 8 && size_of::<c_longlong>() == 8);
