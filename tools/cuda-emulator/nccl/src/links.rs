//! Connections to the other processes, by Unix sockets. A process that first has something to tell another one connects
//! to it; each connection carries messages one way, in order.
//!
//! A socket has a name in Linux's abstract namespace. It is no file: it goes with its process, also if this is killed.
//! Processes of other users are turned away.
//!
//! ```text
//! process a   whoever holds the state -> queue -> writer ==socket==> reader -> state   process b
//!             watcher <------------------------ end of b ----------------------
//! ```
//!
//! Nobody writes to a socket while it holds the state, so processes that send each other much cannot block each other.

use crate::abi::Code;
use crate::message::{Message, Process};
use crate::say::refuse;
use crate::state::{changed, lock};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

/// The connection to a process.
pub struct Link {
    queue: mpsc::Sender<Message>,
    /// Number of messages that were given to it.
    pub queued: u64,
    /// Number of those that have left this process.
    pub written: u64,
}

impl Link {
    /// Begins to connect to a process.
    pub fn to(own: Process, process: Process) -> Self {
        let (queue, messages) = mpsc::channel();
        start("NCCL writer", move || {
            let connected = greet(process, [own, own]).and_then(|stream| Ok((stream.try_clone()?, stream)));
            let Ok((watched, stream)) = connected else {
                lock().lose(process);
                changed();
                return;
            };
            start("NCCL watcher", move || watch(watched, own, process));
            // An error is left to those who read: they may still have messages.
            let _ = write(stream, process, messages);
        });
        Self { queue, queued: 0, written: 0 }
    }

    /// Queues a message.
    pub fn tell(&mut self, message: Message) {
        self.queued += 1;
        let _ = self.queue.send(message);
    }
}

/// This process, which listens from the first call on.
///
/// # Errors
/// The system gives no socket.
pub fn own() -> Result<Process, Code> {
    static OWN: OnceLock<Option<Process>> = OnceLock::new();
    match OWN.get_or_init(|| listen().ok()) {
        Some(process) => Ok(*process),
        None => refuse(Code::SYSTEM_ERROR, "the system gives no Unix socket"),
    }
}

fn listen() -> io::Result<Process> {
    let mut random = [0; 8];
    // SAFETY: the bytes are there.
    if unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) } != random.len() as isize {
        return Err(io::Error::last_os_error());
    }
    let own = Process::from_ne_bytes(random);
    let listener = UnixListener::bind_addr(&address(own)?)?;
    start("NCCL listener", move || {
        for stream in listener.incoming().flatten() {
            // One after another: a mark of the end of a process comes after the connection that this process has made.
            if let Ok(greeting) = accept(&stream) {
                admit(stream, greeting, own);
            }
        }
    });
    Ok(own)
}

fn address(process: Process) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("kiln-emulated-nccl-{process:016x}"))
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.into()).spawn(work).expect("the system must give a thread");
}

/// Connects to a process, and says who does it, and whose end it is about; its own if about none's.
fn greet(process: Process, greeting: [Process; 2]) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&address(process)?)?;
    stream.write_all(&greeting.map(Process::to_ne_bytes).concat())?;
    Ok(stream)
}

/// Reads who connects, if it is a process of this user.
fn accept(mut stream: &UnixStream) -> io::Result<[Process; 2]> {
    // SAFETY: the structure is plain data.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the places are valid, and the length is theirs.
    let (code, user) = unsafe {
        let to = (&raw mut peer).cast();
        let code = libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len);
        (code, libc::geteuid())
    };
    if code != 0 || peer.uid != user {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut words = [[0; 8]; 2];
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.read_exact(words.as_flattened_mut())?;
    stream.set_read_timeout(None)?;
    Ok(words.map(Process::from_ne_bytes))
}

/// Takes what a process tells, or notes the end of one.
fn admit(stream: UnixStream, [process, about]: [Process; 2], own: Process) {
    if process != own {
        lock().heard.insert(process);
        start("NCCL reader", move || {
            let mut from = BufReader::new(stream);
            while let Ok(message) = Message::read(&mut from) {
                lock().receive(message);
                changed();
            }
            lock().lose(process);
            changed();
        });
    } else if !lock().heard.contains(&about) {
        lock().lose(about);
        changed();
    }
}

fn write(stream: UnixStream, process: Process, messages: mpsc::Receiver<Message>) -> io::Result<()> {
    let mut to = BufWriter::new(stream);
    for message in messages {
        message.write(&mut to)?;
        to.flush()?;
        if let Some(link) = lock().links.get_mut(&process) {
            link.written += 1;
        }
        changed();
    }
    Ok(())
}

/// Waits for the end of a process, which never writes here. If it has connected to this process, there may be messages
/// that were not read yet, and their reader notes the end. If it never does so, this notes it: by a connection to
/// itself, which is accepted after all that the process has made.
fn watch(mut stream: UnixStream, own: Process, process: Process) {
    let _ = stream.read_exact(&mut [0]);
    let _ = greet(own, [own, process]);
}
