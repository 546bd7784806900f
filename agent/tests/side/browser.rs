//! The web page in a real browser.

use crate::side::chromium::Browser;
use crate::side::http::{TOKEN, World, open, status};
use fide_agent::config::Token;
use fide_agent::http::KEEP_ALIVE;
use fide_agent::site::Options;
use fide_explain::samples::killed;
use fide_wire::control::{AppStatus, HistoryEvent, MaintenanceStatus, WatchStatus};
use fide_wire::verdict::{Cause, Evidence, Grade, PathEvidence};
use serde_json::json;
use std::time::Instant;

const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";

fn events(w: &World) {
    let path = |silent_ns| PathEvidence { last_number: 4711, silent_ns, asked: true, carrier: true, ..PathEvidence::default() };
    let evidence = Evidence {
        paths: vec![path(1_700_000), path(2_000_000)],
        timeout_ns: 1_612_000,
        contract: fide_explain::samples::CONTRACT,
        observer_awake_ns: 12_000_000_000,
        drained: true,
        ..Evidence::default()
    };
    let of =
        |cause, app: Option<&str>, text: &str| HistoryEvent { cause, app: app.map(String::from), text: text.into(), ..killed() };
    w.happen(of(Cause::PathDown, None, "nothing of h2 arrives on path 1"));
    w.happen(of(Cause::Monitored, Some("redis"), "redis@h2 is watched"));
    w.happen(of(Cause::ContractBroken, None, "h2 was late"));
    w.happen(of(Cause::Killed, Some("redis"), "redis@h2 was ended by SIGKILL"));
    let silent = HistoryEvent {
        grade: Grade::Inferred,
        evidence: Some(Box::new(evidence)),
        ..of(Cause::SilentHost, None, "h2 is silent")
    };
    w.happen(silent);
    w.happen(of(Cause::Killed, Some(HOSTILE), &format!("{HOSTILE}@h2 was ended by SIGKILL")));
}

#[test]
fn the_page_shows_hosts_processes_and_events_as_they_happen_and_runs_nothing_of_theirs() {
    let Some(mut b) = Browser::start("the web page") else { return };
    let w = World::new(Options { token: Some(Token::parse(TOKEN).unwrap()), ..open() });
    let mut shown = status();
    shown.hosts[0].apps.push(AppStatus { name: HOSTILE.into(), app: 2, state: "alive".into() });
    shown.watched.push(WatchStatus {
        name: "x".repeat(64),
        state: "pending".into(),
        why: "no process listens there".into(),
        ..WatchStatus::default()
    });
    shown.maintenance.push(MaintenanceStatus { target: "db@a".into(), left_ns: 600_000_000_000, ..MaintenanceStatus::default() });
    w.publish(shown.clone());
    events(&w);
    let url = format!("http://{}/", w.at);
    b.look(1280, "light");

    // The token: asked for, refused, taken.
    b.open(&url);
    b.until("document.getElementById('ask') && !document.getElementById('ask').hidden && document.activeElement.id === 'token'");
    assert!(!b.eval("document.body.innerText").as_str().unwrap().contains("redis"));
    b.call("Input.insertText", json!({ "text": "wrong-wrong-wrong-wrong" }));
    b.key("Enter", 13);
    b.until("document.getElementById('why').textContent === \"It is not the agent's.\"");
    b.open(&format!("{url}#token={TOKEN}"));
    b.until("document.querySelector('#live')?.textContent === 'live' && document.querySelectorAll('#hosts tr').length === 1 && document.title.startsWith('a')");
    assert_eq!(b.eval("location.hash"), "", "the token does not stay in the address");

    // What is there.
    b.until("document.querySelectorAll('#events > li').length === 5");
    let body = b.eval("document.body.innerText").as_str().unwrap().to_owned();
    for text in [
        "a in prod",
        "margin 180 µs of 600 µs",
        "contract broken by 20 µs",
        "silent-host",
        "In maintenance: db@a",
        "pid 4711",
        HOSTILE,
    ] {
        assert!(body.contains(text), "{text}\nis not in\n{body}");
    }
    assert!(!body.contains("h2 was late"), "timing is hidden");
    assert_eq!(b.eval("document.querySelectorAll('img').length"), 0);

    // As it happens.
    let began = Instant::now();
    w.happen(HistoryEvent { text: "it came live".into(), ..killed() });
    b.until("document.querySelector('#events > li').textContent.includes('it came live')");
    assert!(began.elapsed() < KEEP_ALIVE, "not only with the next sign of life of the stream: {:?}", began.elapsed());
    shown.hosts[0].state = "silent-host".into();
    w.publish(shown);
    b.until("document.querySelector('#hosts .badge').textContent === 'silent-host'");

    // By keyboard alone: the filter, then an event and what it rests on.
    b.eval("document.activeElement.blur()");
    b.key("/", 191);
    b.call("Input.insertText", json!({ "text": "silent h2" }));
    b.until("document.querySelectorAll('#events > li').length === 1");
    b.key("Tab", 9);
    b.until("document.activeElement.tagName === 'SUMMARY'");
    b.key("Enter", 13);
    b.until("document.querySelector('#events pre')?.textContent.includes('TO = HB')");
    b.picture("explained-light.png");
    b.eval("document.getElementById('filter').value = ''; document.getElementById('filter').dispatchEvent(new Event('input'))");
    b.eval(
        "document.getElementById('level').value = 'timing'; document.getElementById('level').dispatchEvent(new Event('change'))",
    );
    b.until("document.body.innerText.includes('h2 was late')");

    // Nothing overlaps or runs out of the window, in either colour scheme.
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")] {
        b.look(width, scheme);
        b.eval("for (const d of document.querySelectorAll('details')) d.open = true");
        b.until("[...document.querySelectorAll('details')].every(d => d.querySelector('pre') && d.querySelector('pre').textContent !== '…')");
        let outside = b.eval(
            "[...document.querySelectorAll('body *')].filter(e => !e.closest('pre, .skip') && e.getBoundingClientRect().right > innerWidth + 1)
                .map(e => e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 40))",
        );
        assert_eq!(outside, json!([]), "{width} {scheme}");
        let over = b.eval(
            "[...document.querySelectorAll('summary, tr, .tools, header')].flatMap(e => { const c = [...e.children].map(c => [c, c.getBoundingClientRect()]); return c.flatMap(([x, a], i) => c.slice(i + 1)
                .filter(([y, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1).map(([y]) => x.textContent + ' over ' + y.textContent)); })
                .concat([...document.querySelectorAll('.number, .badge')].filter(e => e.parentElement.tagName !== 'HEADER' && e.scrollWidth > e.clientWidth + 1 && e.clientWidth).map(e => 'cut: ' + e.textContent))",
        );
        assert_eq!(over, json!([]), "{width} {scheme}");
        assert!(b.eval("document.documentElement.scrollWidth").as_u64().unwrap() <= u64::from(width), "{width} {scheme}");
        b.eval("for (const d of document.querySelectorAll('details')) d.open = false");
        let back = b.eval("getComputedStyle(document.body).backgroundColor").as_str().unwrap().to_owned();
        assert_eq!(back == "rgb(17, 20, 23)", scheme == "dark", "{back}");
        b.picture(&format!("page-{width}-{scheme}.png"));
    }

    // The agent goes away: the page says so.
    let requests = std::mem::take(&mut b.requests);
    assert!(requests.iter().all(|r| r.starts_with(&url)), "{requests:?}");
    assert_eq!((b.eval("violations"), b.eval("failures"), b.eval("document.title")), (json!([]), json!([]), json!("a – FiDe")));
    drop(w);
    b.until("document.getElementById('live').textContent.startsWith('not connected')");
}

#[test]
fn contrasts_are_readable_in_both_schemes() {
    let Some(mut b) = Browser::start("the web page") else { return };
    let w = World::new(open());
    w.publish(status());
    events(&w);
    for scheme in ["light", "dark"] {
        b.look(1280, scheme);
        b.open(&format!("http://{}/", w.at));
        b.until("document.querySelectorAll('#events > li').length === 5 && document.querySelectorAll('#hosts tr').length === 1");
        // WCAG 2.1, 1.4.3: 4.5 : 1.
        let weak = b.eval(
            "(() => {
                const rgb = c => c.match(/[\\d.]+/g).map(Number);
                const lum = c => { const [r, g, b] = rgb(c).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
                const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c).length < 4 || rgb(c)[3] > 0) return c; } return 'rgb(255,255,255)'; };
                const texts = [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.getClientRects().length && !['SCRIPT', 'STYLE', 'OPTION'].includes(e.tagName));
                return texts.map(e => { const [a, b] = [lum(getComputedStyle(e).color), lum(back(e))].sort((x, y) => y - x); return [(a + 0.05) / (b + 0.05), e.className + ' ' + e.textContent.slice(0, 30)]; }).filter(([ratio]) => ratio < 4.5);
            })()",
        );
        assert_eq!(weak, json!([]), "{scheme}");
    }
}
