//! etcd by its JSON gateway (`/v3/…`, plain HTTP): every etcd since 3.4 has it, and it needs no gRPC here.

use super::http::{Connection, excerpt};
use super::{ANSWER, Target};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The longest life believed, s.
const TTL_MAX_S: u64 = 3600;

/// See [`super::keep`].
///
/// # Errors
/// Whatever ends it.
pub fn keep(target: &Target, granted: impl FnOnce(u64)) -> Result<Infallible> {
    let mut connection = connect(target.address)?;
    // The server raises it to the least that it grants.
    let (lease, ttl_s) = lease_of(&call(&mut connection, "/v3/lease/grant", &json!({"TTL": "1"}))?)?;
    let put = json!({"key": base64(target.key.as_bytes()), "value": base64(b"alive"), "lease": lease});
    call(&mut connection, "/v3/kv/put", &put)?;
    granted(ttl_s * 1000);
    let mut next = Instant::now();
    loop {
        // As clientv3 does.
        next += Duration::from_millis(ttl_s * 1000 / 3);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let renewed = call(&mut connection, "/v3/lease/keepalive", &json!({"ID": lease}))?;
        lease_of(renewed.get("result").unwrap_or(&Value::Null)).context("the lease is gone")?;
    }
}

/// See [`super::watch`].
///
/// # Errors
/// When there is no such key, or the server fails.
pub fn watch(target: &Target, watching: impl FnOnce(), deadline: Instant) -> Result<()> {
    let key = base64(target.key.as_bytes());
    let mut stream = connect(target.address)?;
    stream.ask("POST", "/v3/watch", &json!({"create_request": {"key": key}}).to_string())?;
    let mut next = |deadline| -> Result<Change> { change(&stream.message(deadline)?.context("the watch ended")?) };
    ensure!(next(Instant::now() + ANSWER)? == Change::Created, "it did not begin to watch");
    // Behind the beginning of the watch: from here on nothing is missed.
    let range = call(&mut connect(target.address)?, "/v3/kv/range", &json!({"key": key, "count_only": true}))?;
    ensure!(range.get("count").and_then(Value::as_str) == Some("1"), "{} is not there", target.key);
    watching();
    while next(deadline)? != Change::Deleted {}
    Ok(())
}

/// Its version; it answers when it can grant leases.
///
/// # Errors
/// While it cannot.
pub fn version(address: SocketAddr) -> Result<String> {
    let mut connection = Connection::open(address, Duration::from_secs(1))?;
    let deadline = || Instant::now() + Duration::from_secs(2);
    connection.ask("POST", "/v3/lease/grant", &json!({"TTL": "1"}).to_string())?;
    lease_of(&read(&connection.only_message(deadline())?)?)?;
    connection.ask("GET", "/version", "")?;
    let answer = read(&connection.only_message(deadline())?)?;
    Ok(answer.get("etcdserver").and_then(Value::as_str).map_or_else(String::new, |v| excerpt(v.as_bytes())))
}

/// Whether that member leads.
///
/// # Errors
/// While it knows of no leader.
pub fn leads(address: SocketAddr) -> Result<bool> {
    let status = call(&mut connect(address)?, "/v3/maintenance/status", &json!({}))?;
    let me = status.pointer("/header/member_id").and_then(Value::as_str).context("a status without a member")?;
    let leader = status.get("leader").and_then(Value::as_str).filter(|id| *id != "0").context("nobody leads")?;
    Ok(me == leader)
}

/// What is set for the user's own etcd is not meant for this one; what lets it run at all is.
pub fn without_settings(command: &mut std::process::Command) {
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("ETCD_") && name != "ETCD_UNSUPPORTED_ARCH" {
            command.env_remove(&variable);
        }
    }
}

fn connect(address: SocketAddr) -> Result<Connection> {
    Connection::open(address, ANSWER).with_context(|| format!("no etcd at {address}"))
}

fn call(connection: &mut Connection, path: &str, body: &Value) -> Result<Value> {
    let mut asked = || -> Result<Value> {
        connection.ask("POST", path, &body.to_string())?;
        read(&connection.only_message(Instant::now() + ANSWER)?)
    };
    asked().with_context(|| format!("etcd, asked for {path}"))
}

/// An object, unless it tells of an error.
fn read(message: &[u8]) -> Result<Value> {
    let value: Value = serde_json::from_slice(message).with_context(|| format!("not JSON: {}", excerpt(message)))?;
    ensure!(value.is_object() && value.get("error").is_none(), "{}", excerpt(message));
    Ok(value)
}

/// Id and seconds of a lease that was granted or renewed. A lease that is gone is renewed with no or zero seconds.
fn lease_of(answer: &Value) -> Result<(String, u64)> {
    let text = |name| answer.get(name).and_then(Value::as_str);
    let id = text("ID").filter(|id| id.parse::<i64>().is_ok_and(|id| id != 0)).context("a lease without an id")?;
    let ttl = text("TTL").and_then(|t| t.parse().ok()).filter(|t| (1..=TTL_MAX_S).contains(t));
    Ok((id.to_string(), ttl.context("a lease without a sensible life")?))
}

/// What a message of a watch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created,
    Deleted,
    Other,
}

fn change(message: &[u8]) -> Result<Change> {
    let value = read(message)?;
    let result = value.get("result").with_context(|| format!("not of a watch: {}", excerpt(message)))?;
    if result.get("canceled").and_then(Value::as_bool) == Some(true) {
        bail!("etcd gave up the watch: {}", excerpt(message));
    }
    let mut events = result.get("events").and_then(Value::as_array).into_iter().flatten();
    // A put has no type: it is the first in the enumeration.
    Ok(if events.any(|e| e.get("type").and_then(Value::as_str) == Some("DELETE")) {
        Change::Deleted
    } else if result.get("created").and_then(Value::as_bool) == Some(true) {
        Change::Created
    } else {
        Change::Other
    })
}

/// As JSON's `bytes` are written.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_rfc_4648_says() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy"), ("\u{7ff}", "378=")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn leases_are_read_and_nonsense_is_not() {
        // As 3.4.23 answers.
        let answer = br#"{"header":{"revision":"1","raft_term":"2"},"ID":"7668682387826355461","TTL":"2"}"#;
        assert_eq!(lease_of(&read(answer).unwrap()).unwrap(), ("7668682387826355461".to_string(), 2));
        for bad in [
            r#"{"ID":"7587"}"#,
            r#"{"ID":"7587","TTL":"0"}"#,
            r#"{"ID":"7587","TTL":"-1"}"#,
            r#"{"ID":"7587","TTL":"99999999"}"#,
            r#"{"ID":"0","TTL":"2"}"#,
            r#"{"ID":"a\"b","TTL":"2"}"#,
            r#"{"ID":7587,"TTL":2}"#,
        ] {
            assert!(lease_of(&read(bad.as_bytes()).unwrap()).is_err(), "{bad}");
        }
        for bad in ["", "[]", "{", r#"{"error":"etcdserver: requested lease not found","code":5}"#, "\u{0}"] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
        let deep = "[".repeat(100_000);
        assert!(read(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_watch_tells_a_deletion_from_everything_else() {
        let kv = r#"{"key":"Zm9v","mod_revision":"3"}"#;
        for (message, expected) in [
            (r#"{"result":{"header":{},"created":true}}"#.to_string(), Change::Created),
            (format!(r#"{{"result":{{"events":[{{"kv":{kv}}}]}}}}"#), Change::Other),
            (format!(r#"{{"result":{{"events":[{{"kv":{kv}}},{{"type":"DELETE","kv":{kv}}}]}}}}"#), Change::Deleted),
            (r#"{"result":{"events":"DELETE"}}"#.into(), Change::Other),
        ] {
            assert_eq!(change(message.as_bytes()).unwrap(), expected, "{message}");
            for cut in 0..message.len() {
                assert!(change(&message.as_bytes()[..cut]).is_err(), "cut at {cut}");
            }
        }
        assert!(change(br#"{"result":{"created":true,"canceled":true}}"#).is_err());
        assert!(change(br#"{"error":{"code":14}}"#).is_err());
    }
}
