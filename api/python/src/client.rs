//! A connection to the agent, and what comes by it.

use crate::{closed, failed, member, raise, span, wait};
use fide_client::wire::event::Record;
use fide_client::wire::verdict::VerdictId;
use fide_client::{Error, Flat, Options, Resources};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Something that this process is told.
#[pyclass(frozen, module = "fide")]
pub struct Event(Flat);

#[pymethods]
impl Event {
    #[getter]
    fn kind(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        member(py, "EventKind", self.0.kind)
    }
    #[getter]
    fn cause(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        (self.0.cause != 0).then(|| member(py, "Cause", self.0.cause)).transpose()
    }
    #[getter]
    fn grade(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        (self.0.grade != 0).then(|| member(py, "Grade", self.0.grade)).transpose()
    }
    #[getter]
    fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }
    #[getter]
    fn node(&self) -> u32 {
        self.0.node
    }
    #[getter]
    fn app(&self) -> u32 {
        self.0.app
    }
    #[getter]
    fn incarnation(&self) -> u32 {
        self.0.incarnation
    }
    #[getter]
    fn code(&self) -> i32 {
        self.0.code
    }
    #[getter]
    fn path(&self) -> u32 {
        self.0.path
    }
    #[getter]
    fn confirms(&self) -> bool {
        self.0.flags & u32::from(Record::CONFIRMS) != 0
    }
    #[getter]
    fn local(&self) -> bool {
        self.0.flags & u32::from(Record::LOCAL) != 0
    }
    #[getter]
    fn fenced(&self) -> bool {
        self.0.flags & u32::from(Record::FENCED) != 0
    }
    #[getter]
    fn id(&self) -> Option<String> {
        (self.0.id != 0).then(|| VerdictId(self.0.id).to_string())
    }
    #[getter]
    fn event_ns(&self) -> u64 {
        self.0.event_ns
    }
    #[getter]
    fn sent_ns(&self) -> u64 {
        self.0.sent_ns
    }
    #[getter]
    fn received_ns(&self) -> u64 {
        self.0.received_ns
    }
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.data)
    }
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let text = |value: Py<PyAny>| -> PyResult<String> { Ok(value.bind(py).str()?.to_string()) };
        let mut said = format!("<fide.Event {}", text(self.kind(py)?)?);
        for value in [self.cause(py)?, self.grade(py)?].into_iter().flatten() {
            said += &format!(" {}", text(value)?);
        }
        if let Some(name) = &self.0.name {
            said += &format!(" {name}");
        }
        Ok(said + ">")
    }
}

/// What `Client.monitor` was granted.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Monitored {
    alive: bool,
    state: Option<Py<PyAny>>,
    cause: Option<Py<PyAny>>,
    code: Option<i32>,
    node: u32,
    app: u32,
    pbsize: u32,
    timeout: f64,
}

impl Monitored {
    fn of(py: Python<'_>, m: &fide_client::Monitored) -> PyResult<Self> {
        Ok(Self {
            alive: m.alive,
            state: m.state.map(|state| member(py, "TargetState", state as u32)).transpose()?,
            cause: m.end.map(|(cause, _)| member(py, "Cause", cause as u32)).transpose()?,
            code: m.end.map(|(_, code)| code),
            node: m.subject.node,
            app: m.subject.app,
            pbsize: m.granted.pbsize,
            timeout: m.granted.timeout.as_secs_f64(),
        })
    }
}

#[pymethods]
impl Monitored {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = self.state.as_ref().map_or(Ok(String::from("unknown")), |s| Ok::<_, PyErr>(s.bind(py).str()?.to_string()))?;
        Ok(format!("<fide.Monitored {state}, app {}, pbsize {}, timeout {}>", self.app, self.pbsize, self.timeout))
    }
}

/// What `Client.join` was granted.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Joined {
    app: u32,
    pbsize: u32,
}

/// What `Client.reconnect` restored.
#[pyclass(frozen, get_all, module = "fide")]
pub struct Resumed {
    joined: Option<Py<PyAny>>,
    targets: Vec<(String, Py<PyAny>)>,
}

/// A progress counter of this process.
#[pyclass(frozen, module = "fide")]
pub struct Progress {
    client: Arc<fide_client::Client>,
    counter: RwLock<Option<fide_client::Progress>>,
}

impl Progress {
    fn with<T>(&self, act: impl FnOnce(&fide_client::Progress) -> T) -> PyResult<T> {
        let counter = self.counter.read().unwrap_or_else(PoisonError::into_inner);
        counter.as_ref().map(act).ok_or_else(closed)
    }
}

#[pymethods]
impl Progress {
    fn tick(&self) -> PyResult<()> {
        self.with(fide_client::Progress::tick)
    }
    fn begin(&self) -> PyResult<()> {
        self.with(fide_client::Progress::begin)
    }
    fn end(&self) -> PyResult<()> {
        self.with(fide_client::Progress::end)
    }
    fn set_limit(&self, py: Python<'_>, limit: f64) -> PyResult<()> {
        let limit = span(Some(limit), "the limit")?.unwrap_or_default();
        py.detach(|| self.with(|counter| self.client.set_progress_limit(counter, limit)))?.map_err(failed(py))
    }
    fn close(&self) {
        drop(self.counter.write().unwrap_or_else(PoisonError::into_inner).take());
    }
    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        slf.get().begin()?;
        Ok(slf.clone_ref(py))
    }
    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.end()
    }
}

/// A connection to the agent of this host. Any method from any thread.
#[pyclass(frozen, subclass, module = "fide")]
pub struct Client(Mutex<Option<Arc<fide_client::Client>>>);

impl Client {
    fn get(&self) -> PyResult<Arc<fide_client::Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)
    }

    fn ask<T: Send>(&self, py: Python<'_>, ask: impl FnOnce(&fide_client::Client) -> Result<T, Error> + Send) -> PyResult<T> {
        let client = self.get()?;
        py.detach(|| ask(&client)).map_err(failed(py))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (path = None, *, socket_only = false, answer_timeout = None))]
    fn new(py: Python<'_>, path: Option<std::path::PathBuf>, socket_only: bool, answer_timeout: Option<f64>) -> PyResult<Self> {
        let mut options = Options { path, socket_only, ..Options::default() };
        if let Some(limit) = span(answer_timeout, "answer_timeout")? {
            options.answer_timeout = limit;
        }
        let client = py.detach(|| fide_client::Client::open_with(options)).map_err(failed(py))?;
        Ok(Self(Mutex::new(Some(Arc::new(client)))))
    }

    #[getter]
    fn node(&self) -> PyResult<String> {
        Ok(self.get()?.agent().node.clone())
    }
    #[getter]
    fn cluster(&self) -> PyResult<String> {
        Ok(self.get()?.agent().cluster.clone())
    }
    #[getter]
    fn pbsize(&self) -> PyResult<usize> {
        Ok(self.get()?.pbsize())
    }
    #[getter]
    fn closed(&self) -> bool {
        self.get().is_err()
    }

    #[pyo3(signature = (target, *, pbsize = 0, timeout = 0.0))]
    fn monitor(&self, py: Python<'_>, target: &str, pbsize: u32, timeout: f64) -> PyResult<Monitored> {
        let wanted = Resources { pbsize, timeout: span(Some(timeout), "timeout")?.unwrap_or_default() };
        let monitored = self.ask(py, |client| client.monitor(target, wanted))?;
        Monitored::of(py, &monitored)
    }
    fn unmonitor(&self, py: Python<'_>, target: &str) -> PyResult<()> {
        self.ask(py, |client| client.unmonitor(target))
    }
    #[pyo3(signature = (name, *, pbsize = 0))]
    fn join(&self, py: Python<'_>, name: &str, pbsize: u32) -> PyResult<Joined> {
        let (app, pbsize) = self.ask(py, |client| client.join(name, pbsize))?;
        Ok(Joined { app, pbsize })
    }
    fn quit(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, fide_client::Client::quit)
    }
    fn piggyback(&self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        self.get()?.piggyback(message).map_err(failed(py))
    }
    fn progress(&self, py: Python<'_>, limit: f64) -> PyResult<Progress> {
        let limit = span(Some(limit), "the limit")?.unwrap_or_default();
        let client = self.get()?;
        let counter = py.detach(|| client.progress(limit)).map_err(failed(py))?;
        Ok(Progress { client, counter: RwLock::new(Some(counter)) })
    }
    /// Seconds that are left.
    fn maintenance(&self, py: Python<'_>, target: &str) -> PyResult<Option<f64>> {
        Ok(self.ask(py, |client| client.maintenance(target))?.map(|m| m.left_ns as f64 / 1e9))
    }
    #[pyo3(signature = (name, hung, reason = ""))]
    fn report(&self, py: Python<'_>, name: &str, hung: bool, reason: &str) -> PyResult<()> {
        self.ask(py, |client| client.report(name, hung, reason))
    }

    #[pyo3(signature = (timeout = None))]
    fn next_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Event>> {
        let timeout = span(timeout, "timeout")?;
        let client = self.get()?;
        let fd = client.as_raw_fd();
        let event = wait(py, fd, timeout, || client.poll(Some(Duration::ZERO)))?;
        Ok(event.map(|event| Event(event.into())))
    }
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.get()?.as_raw_fd())
    }

    fn reconnect(&self, py: Python<'_>) -> PyResult<Resumed> {
        let resumed = self.ask(py, fide_client::Client::reconnect)?;
        let error = |e: Error| raise(py, e.code() as u32, &e.to_string()).into_value(py).into_any();
        let joined = match resumed.joined {
            None => None,
            Some(Ok((app, pbsize))) => Some(Py::new(py, Joined { app, pbsize })?.into_any()),
            Some(Err(e)) => Some(error(e)),
        };
        let target = |(target, answer): (String, Result<fide_client::Monitored, Error>)| -> PyResult<(String, Py<PyAny>)> {
            Ok((
                target,
                match answer {
                    Ok(m) => Py::new(py, Monitored::of(py, &m)?)?.into_any(),
                    Err(e) => error(e),
                },
            ))
        };
        Ok(Resumed { joined, targets: resumed.targets.into_iter().map(target).collect::<PyResult<_>>()? })
    }

    fn close(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Event>> {
        match self.next_event(py, None) {
            // After the agent's end was told.
            Err(e) if e.is_instance(py, &py.import("fide._errors")?.getattr("DisconnectedError")?) => Ok(None),
            // Closed by another thread.
            Err(e) if e.is_instance_of::<PyRuntimeError>(py) && self.get().is_err() => Ok(None),
            other => other,
        }
    }
}
