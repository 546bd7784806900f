//! `fide._fide`: the client for Python. What Python's own words are better for (enumerations, exceptions, asyncio) is in `python/fide`.
//!
//! Every call that may wait lets other Python threads run meanwhile.

mod client;
mod group;

use fide_client::Error;
use fide_client::wire::verdict::Cause;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long a wait lasts before Python's signal handlers get their turn. An event ends it at once.
const SLICE: Duration = Duration::from_millis(50);

/// A member of an enumeration of `fide._types`; the number itself where this version has no member of that number.
fn member(py: Python<'_>, enumeration: &'static str, number: u32) -> PyResult<Py<PyAny>> {
    static TYPES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let types = TYPES.get_or_try_init(py, || py.import("fide._types").map(Bound::unbind))?.bind(py);
    Ok(types.getattr("member")?.call1((types.getattr(enumeration)?, number))?.unbind())
}

/// The exception for an error of the client.
fn raise(py: Python<'_>, code: u32, text: &str) -> PyErr {
    let made = py.import("fide._errors").and_then(|m| m.getattr("make")?.call1((code, text)));
    made.map_or_else(|e| e, PyErr::from_value)
}

fn failed(py: Python<'_>) -> impl FnOnce(Error) -> PyErr {
    move |error| raise(py, error.code() as u32, &error.to_string())
}

/// A handle that was closed.
fn closed() -> PyErr {
    PyRuntimeError::new_err("it was closed")
}

/// Seconds as a span; `None` waits without limit.
fn span(seconds: Option<f64>, what: &str) -> PyResult<Option<Duration>> {
    let wrong = |s: f64| PyValueError::new_err(format!("{what} is {s} seconds: a number from 0 on, or None for no limit"));
    seconds.map(|s| Duration::try_from_secs_f64(s).map_err(|_| wrong(s))).transpose()
}

/// Waits for `take` to have something: looks, then sleeps until the descriptor is readable, and lets signal handlers run.
fn wait<T: Send>(
    py: Python<'_>,
    fd: RawFd,
    timeout: Option<Duration>,
    mut take: impl FnMut() -> Result<Option<T>, Error> + Send,
) -> PyResult<Option<T>> {
    let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let found = py.detach(|| {
            let found = take()?;
            let slice = left.unwrap_or(SLICE).min(SLICE);
            if found.is_none() && !slice.is_zero() {
                let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // Rounded up, so that the last wait does not spin.
                let slice_ms = slice.as_micros().div_ceil(1000) as libc::c_int;
                // SAFETY: one structure, which lives through the call.
                unsafe { libc::poll(&raw mut poll, 1, slice_ms) };
                return take();
            }
            Ok(found)
        });
        match found.map_err(failed(py))? {
            None if left.is_none_or(|left| !left.is_zero()) => py.check_signals()?,
            found => return Ok(found),
        }
    }
}

/// This host's CLOCK_MONOTONIC, nanoseconds, as `received_ns`.
#[pyfunction]
fn now_ns() -> u64 {
    fide_client::monotonic_ns()
}

/// All causes as `(number, name)`, for tests.
#[pyfunction]
fn causes() -> Vec<(u32, &'static str)> {
    Cause::ALL.iter().map(|cause| (*cause as u32, cause.name())).collect()
}

#[pymodule]
fn _fide(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("PIGGYBACK_MAX", fide_client::wire::PIGGYBACK_MAX)?;
    module.add("VALUE_MAX", fide_client::group::VALUE_MAX)?;
    module.add_function(wrap_pyfunction!(now_ns, module)?)?;
    module.add_function(wrap_pyfunction!(causes, module)?)?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Event>()?;
    module.add_class::<client::Monitored>()?;
    module.add_class::<client::Joined>()?;
    module.add_class::<client::Resumed>()?;
    module.add_class::<client::Progress>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<group::Entry>()?;
    module.add_class::<group::Snapshot>()?;
    module.add_class::<group::Standing>()?;
    module.add_class::<group::Members>()?;
    module.add_class::<group::Overdue>()?;
    module.add_class::<group::Fated>()?;
    module.add_class::<group::Refused>()
}
