//! Groups: a log that several hosts agree on.

use crate::{closed, failed, member, span, wait};
use fide_client::group::{self, Options};
use fide_client::{Error, group::Event};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One entry of the log.
#[pyclass(frozen, module = "fide")]
pub struct Entry {
    entry: group::Entry,
    is_own: bool,
}

#[pymethods]
impl Entry {
    #[getter]
    fn index(&self) -> u64 {
        self.entry.index
    }
    #[getter]
    fn member(&self) -> u16 {
        self.entry.member
    }
    #[getter]
    fn client(&self) -> u64 {
        self.entry.client
    }
    #[getter]
    fn number(&self) -> u64 {
        self.entry.number
    }
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.entry.bytes)
    }
    /// Whether this client proposed it.
    #[getter]
    fn own(&self) -> bool {
        self.is_own
    }
}

/// The state to begin from.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Snapshot {
    index: u64,
    state: Py<PyBytes>,
}

/// How the group stands on this host.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Standing {
    stage: Py<PyAny>,
    me: u16,
    leader: u16,
    leader_node: u32,
    generation: u64,
    index: u64,
}

/// The members that are not known to have crashed.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Members {
    members: Vec<u16>,
}

/// A proposal that was not taken, and never will be decided.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Refused {
    number: u64,
    too_late: bool,
    why: String,
}

/// A proposal was not decided by its deadline, and may be later.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Overdue {
    number: u64,
}

/// What became of a proposal that was asked for.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Fated {
    number: u64,
    fate: Py<PyAny>,
}

/// A group that is open. Calls of several threads take turns.
#[pyclass(frozen, module = "fide")]
pub struct Group(Mutex<Option<group::Group>>);

impl Group {
    fn lock(&self) -> MutexGuard<'_, Option<group::Group>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut group::Group) -> T) -> PyResult<T> {
        self.lock().as_mut().map(act).ok_or_else(closed)
    }

    fn ask<T: Send>(&self, py: Python<'_>, ask: impl FnOnce(&mut group::Group) -> Result<T, Error> + Send) -> PyResult<T> {
        py.detach(|| self.with(ask))?.map_err(failed(py))
    }
}

#[pymethods]
impl Group {
    #[new]
    #[pyo3(signature = (name, *, path = None, client = 0, behind = 0, last_number = 0))]
    fn new(
        py: Python<'_>,
        name: &str,
        path: Option<std::path::PathBuf>,
        client: u64,
        behind: u64,
        last_number: u64,
    ) -> PyResult<Self> {
        let options = Options { path, client, behind, last_number };
        let group = py.detach(|| group::Group::open_with(name, options)).map_err(failed(py))?;
        Ok(Self(Mutex::new(Some(group))))
    }
    #[getter]
    fn client(&self) -> PyResult<u64> {
        self.with(|g| g.client())
    }
    #[getter]
    fn index(&self) -> PyResult<u64> {
        self.with(|g| g.index())
    }
    #[getter]
    fn pending(&self) -> PyResult<usize> {
        self.with(|g| g.pending())
    }
    #[pyo3(signature = (value, *, within = None))]
    fn propose(&self, py: Python<'_>, value: &[u8], within: Option<f64>) -> PyResult<u64> {
        match span(within, "within")? {
            None => self.ask(py, |g| g.propose(value)),
            Some(within) => self.ask(py, |g| g.propose_by(value, Instant::now() + within)),
        }
    }
    fn ask_fate(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.ask(py, |g| g.ask(number))
    }
    fn keep_snapshot(&self, py: Python<'_>, index: u64, state: &[u8]) -> PyResult<()> {
        self.ask(py, |g| g.keep_snapshot(index, state))
    }
    #[pyo3(signature = (timeout = None))]
    fn next_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let timeout = span(timeout, "timeout")?;
        let (fd, me) = self.with(|g| (g.as_raw_fd(), g.client()))?;
        let take = || match self.lock().as_mut() {
            Some(group) => group.poll(Some(Duration::ZERO)),
            None => Err(Error::Disconnected),
        };
        let Some(event) = wait(py, fd, timeout, take)? else { return Ok(None) };
        Ok(Some(match event {
            Event::Entry(entry) => {
                let is_own = entry.client == me;
                Py::new(py, Entry { entry, is_own })?.into_any()
            }
            Event::Snapshot { index, bytes } => {
                Py::new(py, Snapshot { index, state: PyBytes::new(py, &bytes).unbind() })?.into_any()
            }
            Event::Standing(s) => {
                let stage = member(py, "Stage", s.stage as u32)?;
                let group::Standing { me, leader, leader_node, generation, index, .. } = s;
                Py::new(py, Standing { stage, me, leader, leader_node, generation, index })?.into_any()
            }
            Event::Members(members) => Py::new(py, Members { members })?.into_any(),
            Event::Refused { number, refusal, why } => {
                let too_late = refusal == group::Refusal::TooLate;
                Py::new(py, Refused { number, too_late, why })?.into_any()
            }
            Event::Overdue { number } => Py::new(py, Overdue { number })?.into_any(),
            Event::Fate { number, fate } => {
                let fate = member(py, "Fate", fate as u32)?;
                Py::new(py, Fated { number, fate })?.into_any()
            }
        }))
    }
    fn fileno(&self) -> PyResult<i32> {
        self.with(|g| g.as_raw_fd())
    }
    fn reconnect(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, group::Group::reconnect)
    }
    fn close(&self) {
        drop(self.lock().take());
    }
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
}
