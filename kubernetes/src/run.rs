//! The loop: what the agent knows and what Kubernetes has, brought together.

use crate::agent::{self, Told};
use crate::api::{Access, Api, ApiError, Kind, Seen};
use crate::judge::{Change, Given, Judgement, Objects, View, judge, taints_of, text};
use anyhow::{Context as _, Result};
use fide_client::wire::control::HistoryEvent;
use fide_client::wire::level::Level;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant, SystemTime};

/// Both sides are compared at least this often.
const TICK: Duration = Duration::from_secs(1);
/// How often it is looked whether to stop, or to try again, where nothing else wakes this thread.
const LOOK: Duration = Duration::from_millis(100);
/// Begins what is told of failed changes.
const NOT_DONE: &str = "not done";
/// What fails is tried again after so long, which doubles up to the longest.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// A node's taints stand at least so long before they are taken off.
const SETTLED: Duration = Duration::from_secs(10);
/// How often one object is read again in a row because it was changed meanwhile.
const CONFLICTS_MAX: u32 = 8;
/// Messages under way from the threads that listen.
const UNDER_WAY: usize = 1024;

/// What it is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub access: Access,
    /// The agent's socket: an option of the program.
    #[arg(skip)]
    pub socket: Option<PathBuf>,
    /// Say of a node whose host is silent behind a closed fence that it is out of service: Kubernetes then deletes its pods by force and takes their volumes
    /// away, so that pods of a StatefulSet run elsewhere at once. Only where every volume is reached through what the fence guards
    #[arg(long)]
    pub out_of_service: bool,
}

enum Message {
    Event(Box<HistoryEvent>),
    Seen(Kind, Seen),
    /// A listener lost what it listens to.
    Lost(&'static str, String),
    /// And has it again.
    Found(&'static str),
}

fn say(text: &str) {
    eprintln!("fide-kubernetes: {text}");
}

/// Now, as Kubernetes reads times (RFC 3339).
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Whether an object is an older version than another; versions are numbers that grow, wherever they are numbers.
fn is_older(object: &Value, than: &Value) -> bool {
    let version = |object| text(object, "/metadata/resourceVersion").parse::<u128>().ok();
    version(object).zip(version(than)).is_some_and(|(a, b)| a < b)
}

/// Grows from [`AGAIN`] to [`AGAIN_MAX`].
fn doubled(wait: Duration) -> Duration {
    (wait * 2).clamp(AGAIN, AGAIN_MAX)
}

/// Runs `listen` again and again, and tells when it fails and when it works again.
fn keep_listening(
    what: &'static str,
    to: SyncSender<Message>,
    mut listen: impl FnMut(&mut dyn FnMut(Message) -> bool) -> Result<()> + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut wait = AGAIN;
        loop {
            let (mut is_heard, began) = (false, Instant::now());
            let ended = listen(&mut |message| {
                if !is_heard {
                    is_heard = true;
                    if to.send(Message::Found(what)).is_err() {
                        return false;
                    }
                }
                to.send(message).is_ok()
            });
            if let Err(e) = ended
                && to.send(Message::Lost(what, format!("{e:#}"))).is_err()
            {
                return;
            }
            // One that ends at once, over and over, must not ask without a pause.
            wait = if began.elapsed() > AGAIN_MAX { AGAIN } else { wait };
            std::thread::sleep(wait);
            wait = doubled(wait);
        }
    });
}

/// Both sides.
pub struct Adapter {
    settings: Settings,
    api: Api,
    told: Told,
    objects: BTreeMap<Kind, Objects>,
    /// Taints of ours, by node, and since when.
    tainted: BTreeMap<String, (Vec<Value>, Instant)>,
    /// The server did not answer: not before then; and how long is waited behind the next failure.
    retry_at: Option<Instant>,
    wait: Duration,
    /// The server refused to change these: the same for each of them.
    held: BTreeMap<String, (Instant, Duration)>,
    /// Kinds of failures that were told.
    said: BTreeSet<String>,
    doubts: BTreeSet<String>,
    is_quiet: bool,
}

impl Adapter {
    /// # Errors
    /// What of the settings cannot be.
    pub fn new(settings: Settings) -> Result<Self> {
        let api = Api::new(&settings.access)?;
        Ok(Self {
            settings,
            api,
            told: Told::default(),
            objects: BTreeMap::new(),
            tainted: BTreeMap::new(),
            retry_at: None,
            wait: AGAIN,
            held: BTreeMap::new(),
            said: BTreeSet::new(),
            doubts: BTreeSet::new(),
            is_quiet: false,
        })
    }

    /// Until it is told to stop. Taints and conditions stay as they are.
    pub fn run(mut self, stop: &AtomicBool) {
        let (to, from) = mpsc::sync_channel(UNDER_WAY);
        let socket = self.settings.socket.clone();
        keep_listening("the agent", to.clone(), move |tell| {
            agent::follow(socket.as_deref(), &mut |event| tell(Message::Event(Box::new(event))))
        });
        for (kind, what) in [(Kind::Nodes, "nodes"), (Kind::Pods, "pods")] {
            let api = self.api.clone();
            keep_listening(what, to.clone(), move |tell| {
                match api.follow(kind, &mut |seen| tell(Message::Seen(kind, seen))) {
                    // The list is read again, which is no fault.
                    Ok(()) | Err(ApiError::Expired) => Ok(()),
                    Err(e) => Err(e.into()),
                }
            });
        }
        drop(to);
        say(&format!("brings {} and the agent together", self.api.root()));
        let (mut is_new, mut stepped) = (true, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let until = self.retry_at.map_or(LOOK, |at| at.saturating_duration_since(Instant::now())).min(LOOK);
            match from.recv_timeout(until) {
                Ok(message) => {
                    is_new |= self.take(message);
                    while let Ok(more) = from.try_recv() {
                        is_new |= self.take(more);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let is_due = self.retry_at.map_or(is_new || stepped.elapsed() >= TICK, |at| at <= Instant::now());
            if is_due {
                self.step();
                (is_new, stepped) = (false, Instant::now());
            }
        }
    }

    /// Whether it may change what is to be done.
    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Event(event) if event.level() == Level::Timing => return false,
            Message::Event(event) => self.told.note(&event),
            Message::Seen(kind, Seen::All(objects)) => {
                self.objects.insert(kind, objects);
            }
            Message::Seen(kind, Seen::Changed(path, object)) => {
                let objects = self.objects.entry(kind).or_default();
                // A watch lags behind what our own change was answered with.
                if objects.get(&path).is_some_and(|known| is_older(&object, known)) {
                    return false;
                }
                objects.insert(path, object);
            }
            Message::Seen(kind, Seen::Gone(path)) => {
                self.objects.entry(kind).or_default().remove(&path);
            }
            Message::Lost(what, why) => {
                self.say_once(format!("lost {what}"), &format!("lost: {what}: {why}; tried again"));
                return false;
            }
            Message::Found(what) => {
                if self.said.remove(&format!("lost {what}")) {
                    say(&format!("{what}: there again"));
                }
                return false;
            }
        }
        true
    }

    /// Once, until what it is about is over: texts of one failure differ from time to time.
    fn say_once(&mut self, about: String, text: &str) {
        if self.said.insert(about) {
            say(text);
        }
    }

    /// What is known of both, if all is known.
    fn judged(&mut self) -> Result<Option<Judgement>> {
        let view = agent::view(self.settings.socket.as_deref(), &mut self.told).context("the agent cannot be asked")?;
        if view.is_none() != self.is_quiet {
            self.is_quiet = view.is_none();
            say(if self.is_quiet { "this host is fenced: nothing is changed by it" } else { "this host is not fenced any more" });
        }
        let (Some(view), Some(nodes), Some(pods)) = (view, self.objects.get(&Kind::Nodes), self.objects.get(&Kind::Pods)) else {
            return Ok(None);
        };
        let since = Instant::now();
        let mut unsettled = BTreeSet::new();
        let mut tainted = BTreeMap::new();
        for (path, node) in nodes {
            let ours = taints_of(node);
            if ours.is_empty() {
                continue;
            }
            let begun = match self.tainted.get(path) {
                Some((known, begun)) if *known == ours => *begun,
                // The first look: for how long they have stood, nobody says.
                _ => since,
            };
            if begun.elapsed() < SETTLED {
                unsettled.insert(path.clone());
            }
            tainted.insert(path.clone(), (ours, begun));
        }
        self.tainted = tainted;
        let given = Given { unsettled, with_out_of_service: self.settings.out_of_service, now: now() };
        Ok(Some(judge(&view, nodes, pods, &given)))
    }

    fn step(&mut self) {
        match self.try_step() {
            Ok(()) => {
                self.retry_at = None;
                self.wait = AGAIN;
                if self.held.is_empty() && self.said.iter().any(|about| about.starts_with(NOT_DONE)) {
                    self.said.retain(|about| !about.starts_with(NOT_DONE));
                    say("goes on");
                }
            }
            Err(e) => {
                self.say_once(format!("{NOT_DONE}, no answer"), &format!("{NOT_DONE}: {e:#}; tried again"));
                self.retry_at = Some(Instant::now() + self.wait);
                self.wait = doubled(self.wait);
            }
        }
    }

    /// What the server refuses holds up nothing else. An answer that does not come does: the next one would be waited for as long.
    fn try_step(&mut self) -> Result<()> {
        let Some(judgement) = self.judged()? else { return Ok(()) };
        for doubt in judgement.doubts.difference(&self.doubts) {
            say(doubt);
        }
        self.doubts = judgement.doubts;
        self.held.retain(|path, _| judgement.changes.iter().any(|change| change.path == *path));
        for change in judgement.changes {
            let held = self.held.get(&change.path).copied();
            if held.is_some_and(|(until, _)| until > Instant::now()) {
                continue;
            }
            match self.make(&change) {
                Ok(()) => {
                    self.held.remove(&change.path);
                }
                Err(e @ ApiError::Failed(_)) => return Err(anyhow::Error::from(e).context(change.text)),
                Err(e) => {
                    self.say_once(
                        format!("{NOT_DONE}, {}", e.class()),
                        &format!("{NOT_DONE}: {}: {e}; tried again", change.text),
                    );
                    let wait = held.map_or(AGAIN, |(_, wait)| doubled(wait));
                    self.held.insert(change.path, (Instant::now() + wait, wait));
                }
            }
        }
        Ok(())
    }

    fn make(&mut self, change: &Change) -> Result<(), ApiError> {
        let kind = if change.part.is_empty() { Kind::Nodes } else { Kind::Pods };
        let mut change = change.clone();
        for _ in 0..CONFLICTS_MAX {
            let began = Instant::now();
            let made = self.api.patch(&format!("{}{}", change.path, change.part), change.kind, &change.patch);
            let objects = self.objects.entry(kind).or_default();
            match made {
                Ok(object) => {
                    objects.insert(change.path, object);
                    say(&format!("{} [{:.1} ms]", change.text, began.elapsed().as_secs_f64() * 1e3));
                    return Ok(());
                }
                Err(ApiError::Missing) => {
                    objects.remove(&change.path);
                    return Ok(());
                }
                Err(ApiError::Conflict) => match self.api.get(&change.path) {
                    Ok(object) => {
                        objects.insert(change.path.clone(), object);
                    }
                    Err(ApiError::Missing) => {
                        objects.remove(&change.path);
                        return Ok(());
                    }
                    Err(e) => return Err(e),
                },
                Err(e) => return Err(e),
            }
            // It may be that another one of us has done it, or that it is not to be done any more.
            let again = self.judged().map_err(|e| ApiError::Failed(format!("{e:#}")))?;
            match again.into_iter().flat_map(|j| j.changes).find(|c| c.path == change.path) {
                Some(newer) => change = newer,
                None => return Ok(()),
            }
        }
        Err(ApiError::Conflict)
    }
}

/// Both sides as they are, and what would be changed, for people or as JSON.
///
/// # Errors
/// What cannot be asked.
pub fn status(settings: &Settings, as_json: bool) -> Result<()> {
    let api = Api::new(&settings.access)?;
    let mut told = Told::default();
    let view = agent::view(settings.socket.as_deref(), &mut told).context("the agent cannot be asked")?;
    let view = view.context("this host is fenced (fide fence status): what it knows is not to be acted on")?;
    let (nodes, _) = api.list(Kind::Nodes)?;
    let (pods, _) = api.list(Kind::Pods)?;
    let given = Given { with_out_of_service: settings.out_of_service, now: now(), ..Given::default() };
    let judgement = judge(&view, &nodes, &pods, &given);
    if as_json {
        println!("{}", in_json(&view, &nodes, &pods, &judgement));
    } else {
        print!("{}", in_words(&view, &nodes, &pods, &judgement));
    }
    Ok(())
}

fn in_json(view: &View, nodes: &Objects, pods: &Objects, judgement: &Judgement) -> Value {
    use crate::judge::{ALIVE, WATCH, host_of};
    let nodes: Vec<Value> = nodes.values().map(|node| {
        let host = host_of(node, view);
        serde_json::json!({ "node": text(node, "/metadata/name"), "host": host, "state": host.map(|h| &view.hosts[h].state), "fenced": host.is_some_and(|h| view.hosts[h].is_fenced), "taints": taints_of(node) })
    }).collect();
    let pods: Vec<Value> = pods.values().map(|pod| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let alive = conditions.filter(|c| c["type"] == ALIVE).map(|c| c["status"].clone()).next();
        serde_json::json!({ "namespace": text(pod, "/metadata/namespace"), "pod": text(pod, "/metadata/name"), "node": text(pod, "/spec/nodeName"), "watch": pod["metadata"]["labels"][WATCH], "alive": alive })
    }).collect();
    let changes: Vec<&str> = judgement.changes.iter().map(|c| c.text.as_str()).collect();
    serde_json::json!({ "nodes": nodes, "pods": pods, "changes": changes, "doubts": judgement.doubts })
}

fn in_words(view: &View, nodes: &Objects, pods: &Objects, judgement: &Judgement) -> String {
    let all = in_json(view, nodes, pods, judgement);
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(text.trim_end());
        out.push('\n');
    };
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    line(format!("{:<40} {:<24} {:<14} taints of ours", "NODE", "HOST", "STATE"));
    for node in all["nodes"].as_array().into_iter().flatten() {
        let taints: Vec<String> = node["taints"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|t| format!("{}:{}", word(&t["key"]), word(&t["effect"])))
            .collect();
        let state = if node["host"].is_null() { "no agent here knows it".into() } else { word(&node["state"]) };
        let fenced = if node["fenced"] == true { ", fenced" } else { "" };
        line(format!("{:<40} {:<24} {:<14} {}", word(&node["node"]), word(&node["host"]), state + fenced, taints.join(", ")));
    }
    for pod in all["pods"].as_array().into_iter().flatten() {
        let alive = pod["alive"].as_str().unwrap_or("not said");
        line(format!(
            "pod {}/{} on {}: watch {}, alive: {alive}",
            word(&pod["namespace"]),
            word(&pod["pod"]),
            word(&pod["node"]),
            word(&pod["watch"])
        ));
    }
    judgement.changes.iter().for_each(|change| line(format!("to be done: {}", change.text)));
    judgement.doubts.iter().for_each(|doubt| line(format!("doubt: {doubt}")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers_and_words_are_not() {
        let of = |version: &str| serde_json::json!({ "metadata": { "resourceVersion": version } });
        assert!(is_older(&of("99"), &of("100")) && !is_older(&of("100"), &of("99")) && !is_older(&of("7"), &of("7")));
        assert!(!is_older(&of("a"), &of("b")) && !is_older(&of(""), &of("1")));
    }

    #[test]
    fn what_fails_is_tried_again_ever_more_rarely_but_never_given_up() {
        let waits: Vec<u64> =
            std::iter::successors(Some(AGAIN), |wait| Some(doubled(*wait))).take(9).map(|w| w.as_millis() as u64).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }
}
