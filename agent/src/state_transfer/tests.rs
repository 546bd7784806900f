use super::*;
use fide_wire::mac::Key;
use std::net::TcpListener;

const ID: LargeId = LargeId { node: 1, incarnation: 2, serial: 3 };

fn large(id: LargeId, bytes: usize) -> Large {
    let mut all = Builder::default();
    all.push(&(0..bytes).map(|n| (n % 253) as u8).collect::<Vec<_>>());
    all.into_large(id)
}

fn keys(id: u8, of: u8) -> Keyring {
    Keyring::new((id, Key([of; 16])), None).unwrap()
}

/// One host that has a state, listening on loopback; where, and what it says of each connection.
struct Giver {
    to: SocketAddr,
    shared: Arc<Shared>,
    said: Receiver<anyhow::Result<()>>,
    /// As long as it is there.
    state: Option<Large>,
}

impl Giver {
    fn new(keys: Keyring, state: Large) -> Self {
        let shared = Arc::new(Shared {
            cluster: 9,
            keys: Mutex::new(keys),
            held: Mutex::default(),
            served: AtomicUsize::new(0),
            strangers: Mutex::default(),
            fetches: AtomicUsize::new(0),
        });
        let (id, held) = (state.at().id, (state.at().len, Arc::downgrade(state.pieces())));
        shared.held.lock().unwrap().insert(id, held);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let (say, said) = crossbeam_channel::unbounded();
        let of = shared.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let stranger = Stranger::new(&of, stream.peer_addr().unwrap().ip(), &stream).unwrap();
                if say.send(give(&of, stream, stranger)).is_err() {
                    return;
                }
            }
        });
        Self { to, shared, said, state: Some(state) }
    }

    fn asked(&self, cluster: u32, keys: &Keyring, what: LargeRef) -> (anyhow::Result<Option<Large>>, anyhow::Result<()>) {
        (fetch(self.to, cluster, keys, what), self.said.recv().unwrap())
    }
}

#[test]
fn a_state_is_given_whole_to_who_has_the_key() {
    let mut giver = Giver::new(keys(3, 7), large(ID, 3 * PIECE_LEN + 5));
    let at = giver.state.as_ref().unwrap().at();
    let (fetched, given) = giver.asked(9, &keys(3, 7), at);
    assert_eq!(fetched.unwrap().as_ref(), giver.state.as_ref());
    given.unwrap();
    // During a rotation both keys do.
    *giver.shared.keys.lock().unwrap() = Keyring::new((4, Key([8; 16])), Some((3, Key([7; 16])))).unwrap();
    assert!(giver.asked(9, &keys(3, 7), at).0.unwrap().is_some());
    assert!(giver.asked(9, &keys(4, 8), at).0.unwrap().is_some());
    // Another one is not there; nor is this one when the service lets go of it.
    let other = LargeRef { id: LargeId { serial: 4, ..ID }, ..at };
    assert_eq!(giver.asked(9, &keys(3, 7), other).0.unwrap(), None);
    giver.state = None;
    let (fetched, given) = giver.asked(9, &keys(3, 7), at);
    assert_eq!(fetched.unwrap(), None);
    given.unwrap();
}

#[test]
fn who_has_not_got_the_key_gets_nothing() {
    let giver = Giver::new(keys(3, 7), large(ID, 1000));
    let at = giver.state.as_ref().unwrap().at();
    let said = |cluster, keys: &Keyring| {
        let (fetched, given) = giver.asked(cluster, keys, at);
        assert!(fetched.is_err());
        format!("{:#}", given.unwrap_err())
    };
    assert!(said(9, &keys(3, 8)).contains("its key is another one"));
    assert!(said(9, &keys(2, 7)).contains("not one of this host's"));
    assert!(said(9, &Keyring::default()).contains("not one of this host's"));
    assert!(said(8, &keys(3, 7)).contains("another cluster"));
}

#[test]
fn whatever_comes_instead_of_a_question_ends_the_connection_and_nothing_else() {
    let giver = Giver::new(keys(3, 7), large(ID, 1000));
    let head = [&MAGIC[..], &[3], &9u32.to_be_bytes()].concat();
    let hostile: [Vec<u8>; 6] = [
        vec![],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        head[..5].to_vec(),
        [&head[..], &[0xff, 0xff]].concat(),
        [&head[..], &[0, 0]].concat(),
        [&head[..], &[0, 100], &[7; 100]].concat(),
    ];
    for bytes in hostile {
        let mut stream = TcpStream::connect(giver.to).unwrap();
        stream.write_all(&bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write); // it may be closed by now
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer); // or a reset
        assert!(giver.said.recv().unwrap().is_err(), "{bytes:?}");
        assert!(answer.is_empty(), "{bytes:?}: {answer:?}");
    }
    assert!(giver.asked(9, &keys(3, 7), giver.state.as_ref().unwrap().at()).0.unwrap().is_some());
}

/// Who recorded what another one sent, and sends it again, is told how long the state is and gets none of it.
#[test]
fn what_another_one_sent_is_no_proof_of_who_sends_it_again() {
    let giver = Giver::new(keys(3, 7), large(ID, 1_000_000));
    let head = [&MAGIC[..], &[3], &9u32.to_be_bytes()].concat();
    let mut noise = begin(&[7; 16], &head, true).unwrap();
    let mut buffer = [0; 256];
    let length = noise.write_message(&postcard::to_stdvec(&ID).unwrap(), &mut buffer).unwrap();
    let recorded = [&head[..], &(length as u16).to_be_bytes(), &buffer[..length]].concat();
    for behind in [vec![], vec![0, 16], [&[0, 16][..], &[7; 16]].concat()] {
        let mut stream = TcpStream::connect(giver.to).unwrap();
        stream.write_all(&recorded).unwrap();
        stream.write_all(&behind).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!((1..200).contains(&answer.len()), "{} bytes", answer.len());
        giver.said.recv().unwrap().unwrap_err();
    }
}

#[test]
fn a_connection_that_shows_nothing_ends_soon_and_an_address_has_few_of_them() {
    let giver = Giver::new(keys(3, 7), large(ID, 1000));
    let mut slow = TcpStream::connect(giver.to).unwrap();
    let began = Instant::now();
    for byte in [&MAGIC[..], &[3], &9u32.to_be_bytes(), &[0, 100]].concat() {
        if slow.write_all(&[byte]).is_err() {
            break;
        }
        // Sleep: each byte comes before the one before it is forgotten.
        std::thread::sleep(SHOWN / 8);
    }
    assert!(giver.said.recv().unwrap().is_err());
    assert!(began.elapsed() < 3 * SHOWN);
    // Two addresses: another connection of the first closes its oldest.
    let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let stream = TcpStream::connect(giver.to).unwrap();
    let new = |from| Stranger::new(&giver.shared, from, &stream).unwrap();
    let all: Vec<_> = (0..STRANGERS_OF_ADDRESS).map(|_| new(one)).chain([new(other)]).collect();
    let last = new(one);
    let left: Vec<u64> = giver.shared.strangers.lock().unwrap().iter().map(|of| of.serial).collect();
    assert!(!left.contains(&all[0].1) && all[1..].iter().chain([&last]).all(|stranger| left.contains(&stranger.1)), "{left:?}");
}

/// A host that has the key and gives something else: what it sends behind its answer of `len`.
fn liar(len: u64, pieces: Vec<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; HEAD_LEN];
        stream.read_exact(&mut head).unwrap();
        let mut noise = begin(&[7; 16], &head, false).unwrap();
        let (mut buffer, mut asked) = ([0; 256], [0; 256]);
        let by = Instant::now() + SILENT;
        let length = receive(&mut stream, &mut buffer, by).unwrap();
        noise.read_message(&buffer[..length], &mut asked).unwrap();
        let length = noise.write_message(&len.to_be_bytes(), &mut buffer).unwrap();
        send(&mut stream, &buffer[..length]).unwrap();
        let mut noise = noise.into_transport_mode().unwrap();
        let length = receive(&mut stream, &mut buffer, by).unwrap();
        noise.read_message(&buffer[..length], &mut asked).unwrap();
        let mut sealed = vec![0; SEALED_MAX];
        for piece in pieces {
            let length = noise.write_message(&piece, &mut sealed).unwrap();
            let _ = send(&mut stream, &sealed[..length]);
        }
    });
    to
}

#[test]
fn a_state_that_is_cut_short_or_of_another_length_is_none() {
    let what = LargeRef { id: ID, len: 1000 };
    let of = |len, pieces| fetch(liar(len, pieces), 9, &keys(3, 7), what);
    assert!(of(1000, vec![vec![1; 600], vec![2; 400]]).unwrap().is_some());
    for (len, pieces) in [
        (999, vec![vec![1; 999]]),
        (1001, vec![vec![1; 1001]]),
        (u64::MAX, vec![]),
        (1000, vec![]),
        (1000, vec![vec![1; 999]]),
        (1000, vec![vec![1; 999], vec![1; 2]]),
        (1000, vec![vec![1; 999], vec![]]),
    ] {
        assert!(of(len, pieces).is_err(), "{len}");
    }
}

#[test]
fn agents_give_at_another_port_than_the_lanes() {
    assert_eq!((port_of(3433), port_of(u16::MAX)), (3434, u16::MAX - 1));
}
