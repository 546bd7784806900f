//! The API of Kubernetes, as far as it is needed: lists, watches, patches; over HTTPS, with a service account's token.

use crate::judge::{Objects, text};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Where a pod finds what its service account may use.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Behind a service's address may be a server that has just gone.
const CONNECT: Duration = Duration::from_secs(1);
/// Of one request and its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a watch lasts, and how long after that it is taken for dead.
const WATCH: Duration = Duration::from_secs(60);
const WATCH_OVER: Duration = Duration::from_secs(15);
/// The longest object believed, bytes.
const OBJECT_MAX: u64 = 16 << 20;
/// What is told of an answer that is an error, characters.
const SAID_MAX: usize = 300;

/// Which objects are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// All nodes.
    Nodes,
    /// Pods that name a watch.
    Pods,
}

impl Kind {
    /// Its list, and what narrows it.
    const fn list(self) -> (&'static str, &'static str) {
        match self {
            Self::Nodes => ("/api/v1/nodes", ""),
            Self::Pods => ("/api/v1/pods", "&labelSelector=fide.io%2Fwatch"),
        }
    }

    /// The address of one.
    #[must_use]
    pub fn path(self, object: &Value) -> String {
        let name = text(object, "/metadata/name");
        match self {
            Self::Nodes => format!("/api/v1/nodes/{name}"),
            Self::Pods => format!("/api/v1/namespaces/{}/pods/{name}", text(object, "/metadata/namespace")),
        }
    }
}

/// What a request came to.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The object is another one, or another version, by now.
    #[error("it was changed meanwhile")]
    Conflict,
    /// It is not there.
    #[error("it is not there")]
    Missing,
    /// A watch from a version that is not kept any more.
    #[error("that version is not kept any more")]
    Expired,
    /// The server refuses it, with this code.
    #[error("{1}")]
    Refused(u16, String),
    /// The server is not reached, or says what cannot be read.
    #[error("{0}")]
    Failed(String),
}

impl ApiError {
    /// What errors that differ only in words have in common.
    #[must_use]
    pub fn class(&self) -> String {
        match self {
            Self::Refused(code, _) => code.to_string(),
            Self::Failed(_) => "no answer".into(),
            other => other.to_string(),
        }
    }
}

/// What a watch tells.
pub enum Seen {
    /// All there is, from a list.
    All(Objects),
    /// One that came or was changed.
    Changed(String, Value),
    /// One that has gone.
    Gone(String),
}

/// How the API is reached.
#[derive(Clone, Debug, clap::Args)]
pub struct Access {
    /// The API server [default: that of the cluster whose pod this is]
    #[arg(long, value_name = "URL")]
    pub api: Option<String>,
    /// The bearer token, read anew for each request [default with no --api: the service account's]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Whom the server's certificate must be signed by, PEM [default: the service account's ca.crt]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// A way to the API; one for each thread.
#[derive(Clone)]
pub struct Api {
    agent: ureq::Agent,
    root: String,
    token: Option<PathBuf>,
}

fn root_certificates(file: &Path) -> Result<RootCerts> {
    let pem = std::fs::read(file)
        .with_context(|| format!("cannot read {}; --ca-file names the cluster's certificate", file.display()))?;
    let found: Vec<Certificate<'static>> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(Ok(certificate)),
            Ok(_) => None,
            Err(e) => Some(Err(e)),
        })
        .collect::<Result<_, _>>()
        .with_context(|| format!("{} is not PEM", file.display()))?;
    ensure!(!found.is_empty(), "{} holds no certificate (-----BEGIN CERTIFICATE-----)", file.display());
    Ok(RootCerts::new_with_certs(&found))
}

impl Api {
    /// # Errors
    /// What of the settings cannot be; nothing is asked yet.
    pub fn new(access: &Access) -> Result<Self> {
        let account = Path::new(ACCOUNT);
        let root = match &access.api {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => {
                let of = |name: &str| {
                    std::env::var(name).with_context(|| {
                        format!("{name} is not set: this is no pod of a cluster; give --api URL, such as that of kubectl proxy")
                    })
                };
                let (host, port) = (of("KUBERNETES_SERVICE_HOST")?, of("KUBERNETES_SERVICE_PORT")?);
                format!("https://{}:{port}", if host.contains(':') { format!("[{host}]") } else { host })
            }
        };
        ensure!(root.starts_with("https://") || root.starts_with("http://"), "--api {root}: it begins with https:// or http://");
        let token = access.token_file.clone().or_else(|| access.api.is_none().then(|| account.join("token")));
        ensure!(token.is_none() || root.starts_with("https://"), "--api {root}: a token is not sent in the clear; use https://");
        let ca = access.ca_file.clone().or_else(|| access.api.is_none().then(|| account.join("ca.crt")));
        ensure!(ca.is_some() || root.starts_with("http://"), "--api {root} needs --ca-file, which says whom to believe");
        let roots = ca.as_deref().map_or_else(|| Ok(RootCerts::Specific(Vec::new().into())), root_certificates)?;
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(PATIENCE))
            .max_idle_age(WATCH)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent(concat!("fide-kubernetes/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Self { agent, root, token })
    }

    /// Where it goes.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    fn bearer(&self) -> Result<Option<String>, ApiError> {
        let Some(file) = &self.token else { return Ok(None) };
        let read = std::fs::read_to_string(file)
            .map_err(|e| ApiError::Failed(format!("the token cannot be read: {}: {e}", file.display())))?;
        Ok(Some(format!("Bearer {}", read.trim())))
    }

    /// The answer to a request, if it is none of an error.
    fn answer(&self, method: &str, target: &str, sent: Option<(&str, &Value)>, within: Duration) -> Result<ureq::Body, ApiError> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{target}", self.root))
            .header("Accept", "application/json");
        if let Some(bearer) = self.bearer()? {
            request = request.header("Authorization", bearer);
        }
        let failed = |e: &dyn std::fmt::Display| ApiError::Failed(format!("{method} {target}: {e}"));
        let answered = match sent {
            Some((kind, body)) => {
                let request = request.header("Content-Type", kind).body(body.to_string()).map_err(|e| failed(&e))?;
                self.agent.run(self.agent.configure_request(request).timeout_recv_body(Some(within)).build())
            }
            None => {
                let request = request.body(()).map_err(|e| failed(&e))?;
                self.agent.run(self.agent.configure_request(request).timeout_recv_body(Some(within)).build())
            }
        };
        let mut answer = answered.map_err(|e| failed(&e))?;
        match answer.status().as_u16() {
            200..=299 => Ok(answer.into_body()),
            404 => Err(ApiError::Missing),
            409 => Err(ApiError::Conflict),
            410 => Err(ApiError::Expired),
            code => {
                let said = answer.body_mut().with_config().limit(64 << 10).read_to_string().unwrap_or_default();
                let said = serde_json::from_str::<Value>(&said)
                    .ok()
                    .and_then(|v| v["message"].as_str().map(String::from))
                    .unwrap_or(said);
                let said: String = said.chars().take(SAID_MAX).collect();
                let advice = match code {
                    401 => "; the token is not taken (expired, or of another cluster)",
                    403 => "; the role of this service account lacks that (packaging/kubernetes/fide-kubernetes.yaml)",
                    _ => "",
                };
                Err(ApiError::Refused(code, format!("{method} {target}: {code} {said}{advice}")))
            }
        }
    }

    fn object(&self, method: &str, target: &str, sent: Option<(&str, &Value)>) -> Result<Value, ApiError> {
        let body = self.answer(method, target, sent, PATIENCE)?;
        let reader = body.into_with_config().limit(OBJECT_MAX).reader();
        serde_json::from_reader(reader).map_err(|e| ApiError::Failed(format!("{method} {target}: {e}")))
    }

    /// One object.
    ///
    /// # Errors
    /// [`ApiError`].
    pub fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.object("GET", path, None)
    }

    /// Changes one, and returns it as it is then.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if it is not the one that the patch names.
    pub fn patch(&self, target: &str, kind: &str, patch: &Value) -> Result<Value, ApiError> {
        self.object("PATCH", &format!("{target}?fieldManager=fide-kubernetes"), Some((kind, patch)))
    }

    /// All objects of a kind, and the version from which a watch goes on.
    ///
    /// # Errors
    /// [`ApiError`].
    pub fn list(&self, kind: Kind) -> Result<(Objects, String), ApiError> {
        let (path, narrowed) = kind.list();
        let list = self.object("GET", &format!("{path}?{}", narrowed.trim_start_matches('&')), None)?;
        let version = text(&list, "/metadata/resourceVersion").to_owned();
        let items = list["items"].as_array().ok_or_else(|| ApiError::Failed(format!("GET {path}: an answer without items")))?;
        Ok((items.iter().map(|object| (kind.path(object), object.clone())).collect(), version))
    }

    /// Tells of all objects of a kind, and of each change, until that fails or `tell` returns false.
    ///
    /// # Errors
    /// What ended it: to be begun again.
    pub fn follow(&self, kind: Kind, tell: &mut dyn FnMut(Seen) -> bool) -> Result<(), ApiError> {
        let (objects, mut version) = self.list(kind)?;
        if !tell(Seen::All(objects)) {
            return Ok(());
        }
        let (path, narrowed) = kind.list();
        loop {
            let target = format!(
                "{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={version}{narrowed}",
                WATCH.as_secs()
            );
            let body = self.answer("GET", &target, None, WATCH + WATCH_OVER)?;
            let mut reader = BufReader::new(body.into_with_config().limit(u64::MAX).reader());
            let mut line = Vec::new();
            let failed = |e: &dyn std::fmt::Display| ApiError::Failed(format!("watch {path}: {e}"));
            while reader.by_ref().take(OBJECT_MAX).read_until(b'\n', &mut line).map_err(|e| failed(&e))? > 0 {
                let event: Value = serde_json::from_slice(&line).map_err(|e| failed(&e))?;
                line.clear();
                let object = &event["object"];
                if event["type"] == "ERROR" {
                    return Err(match object["code"].as_u64() {
                        Some(410) => ApiError::Expired,
                        _ => failed(&object["message"]),
                    });
                }
                version = text(object, "/metadata/resourceVersion").to_owned();
                let go_on = match event["type"].as_str() {
                    Some("ADDED" | "MODIFIED") => tell(Seen::Changed(kind.path(object), object.clone())),
                    Some("DELETED") => tell(Seen::Gone(kind.path(object))),
                    // A bookmark has nothing but the version.
                    _ => true,
                };
                if !go_on {
                    return Ok(());
                }
            }
        }
    }
}
