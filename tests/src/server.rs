//! A backend's servers: HTTP/1.1 and UDP echo on one port, in one thread in the backend's namespace.

use crate::{bytes, netns::Netns};
use anyhow::{Context as _, Result};
use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    sync::{Semaphore, oneshot},
    task::JoinSet,
};

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// What it calls itself in every answer.
    pub name: String,
    /// TCP and UDP port.
    pub port: u16,
    /// Requests for work that it serves at once; others wait.
    pub workers: usize,
    /// Work takes this many times as long as asked for.
    pub slowness: f64,
    /// Addresses for UDP. An answer from a wildcard address has the source that the route back
    /// suggests, so a host that is asked by several addresses gives them here.
    pub udp_addresses: Vec<IpAddr>,
}

impl Config {
    /// A quick server.
    pub fn new(name: &str, port: u16) -> Self {
        Self {
            name: name.to_owned(),
            port,
            workers: Semaphore::MAX_PERMITS,
            slowness: 1.0,
            udp_addresses: vec![Ipv6Addr::UNSPECIFIED.into()],
        }
    }
}

/// What a server has seen.
#[derive(Debug, Default)]
pub struct Stats {
    accepted: AtomicU64,
    open: AtomicU64,
    datagrams: AtomicU64,
}

impl Stats {
    /// TCP connections accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// TCP connections open now.
    pub fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// UDP datagrams received.
    pub fn datagrams(&self) -> u64 {
        self.datagrams.load(Relaxed)
    }
}

/// A running server; stops when dropped.
///
/// HTTP paths: `/` answers with the server's name, `/busy/MICROSECONDS` does so after that much work,
/// `/bytes/N` sends the first N bytes of [`bytes`]. Each answer has the headers `x-backend` (the name)
/// and `x-client` (the client's address as the server sees it). A datagram is answered by the name, a
/// space and the datagram.
#[derive(Debug)]
pub struct Server {
    stats: Arc<Stats>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server that listens on all addresses of both families.
    pub fn start(netns: &Netns, config: Config) -> Result<Self> {
        let stats = Arc::new(Stats::default());
        let (stop, stopped) = oneshot::channel();
        let (ready, when_ready) = mpsc::channel();
        let name = config.name.clone();
        let service = Arc::new(Service {
            workers: Semaphore::new(config.workers),
            stats: Arc::clone(&stats),
            config,
        });
        let netns = netns.clone();
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            let started = netns.enter().and_then(|()| {
                Ok(tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?)
            });
            match started {
                Ok(runtime) => runtime.block_on(service.run(ready, stopped)),
                // Nobody waits any more only if the test is over.
                Err(e) => drop(ready.send(Err(e))),
            }
        })?;
        when_ready
            .recv()
            .with_context(|| format!("server {name} ended"))?
            .with_context(|| format!("cannot start server {name}"))?;
        Ok(Self {
            stats,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// What it has seen.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; it must not become a second one here.
            drop(thread.join());
        }
    }
}

struct Service {
    config: Config,
    workers: Semaphore,
    stats: Arc<Stats>,
}

impl Service {
    async fn run(self: Arc<Self>, ready: mpsc::Sender<Result<()>>, stopped: oneshot::Receiver<()>) {
        let sockets = match self.bind().await {
            Ok(sockets) => sockets,
            Err(e) => {
                drop(ready.send(Err(e.into())));
                return;
            }
        };
        drop(ready.send(Ok(())));
        tokio::select! {
            _ = stopped => {}
            () = Arc::clone(&self).accept(sockets.0) => {}
            () = Arc::clone(&self).echo(sockets.1) => {}
        }
    }

    async fn bind(&self) -> io::Result<(TcpListener, Vec<UdpSocket>)> {
        // Both families: IPv4 clients come as IPv4-mapped addresses.
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, self.config.port));
        let socket = TcpSocket::new_v6()?;
        socket.set_reuseaddr(true)?;
        socket.bind(any)?;
        let mut datagrams = Vec::new();
        for address in &self.config.udp_addresses {
            datagrams.push(UdpSocket::bind((*address, self.config.port)).await?);
        }
        Ok((socket.listen(4096)?, datagrams))
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            // An error is one connection's, or a lack of descriptors that ends when others close.
            let Ok((stream, peer)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            self.stats.accepted.fetch_add(1, Relaxed);
            let open = Open::new(&self.stats);
            let service = Arc::clone(&self);
            tokio::spawn(async move {
                let _open = open;
                // The client learns of a broken connection by itself, and says so.
                drop(service.serve(stream, peer).await);
            });
        }
    }

    async fn echo(self: Arc<Self>, sockets: Vec<UdpSocket>) {
        let mut echoes = JoinSet::new();
        for socket in sockets {
            echoes.spawn(Arc::clone(&self).echo_on(socket));
        }
        echoes.join_all().await;
    }

    async fn echo_on(self: Arc<Self>, socket: UdpSocket) {
        let mut buffer = vec![0; 65_536];
        loop {
            // An ICMP error for an earlier answer shows here: the client is gone.
            let Ok((length, peer)) = socket.recv_from(&mut buffer).await else {
                continue;
            };
            self.stats.datagrams.fetch_add(1, Relaxed);
            let answer = [self.config.name.as_bytes(), b" ", &buffer[..length]].concat();
            drop(socket.send_to(&answer, peer).await);
        }
    }

    async fn serve(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return stream.shutdown().await;
            }
            let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            let mut last = false;
            loop {
                line.clear();
                stream.read_line(&mut line).await?;
                match line.trim_end() {
                    "" => break,
                    header => last |= header.eq_ignore_ascii_case("connection: close"),
                }
            }
            self.answer(&mut stream, &path, peer, last).await?;
            if last {
                return stream.shutdown().await;
            }
        }
    }

    async fn answer(
        &self,
        stream: &mut BufReader<TcpStream>,
        path: &str,
        peer: SocketAddr,
        last: bool,
    ) -> io::Result<()> {
        let name = &self.config.name;
        let length = path.strip_prefix("/bytes/").and_then(|n| n.parse().ok());
        if let Some(work) = path.strip_prefix("/busy/").and_then(|n| n.parse().ok()) {
            // Never closed, so never an error.
            let _worker = self.workers.acquire().await;
            let work = Duration::from_micros(work).mul_f64(self.config.slowness);
            tokio::time::sleep(work).await;
        }
        let body_length = length.unwrap_or(name.len() as u64);
        let connection = if last { "close" } else { "keep-alive" };
        let mut head = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {body_length}\r\nconnection: {connection}\r\n\
             x-backend: {name}\r\nx-client: {peer}\r\n\r\n"
        );
        match length {
            None => {
                head.push_str(name);
                stream.write_all(head.as_bytes()).await?;
            }
            Some(length) => {
                stream.write_all(head.as_bytes()).await?;
                let mut buffer = vec![0; 64 * 1024];
                let mut sent = 0;
                while sent < length {
                    let rest = usize::try_from(length - sent).unwrap_or(usize::MAX);
                    let piece = &mut buffer[..rest.min(64 * 1024)];
                    bytes::fill(sent, piece);
                    stream.write_all(piece).await?;
                    sent += piece.len() as u64;
                }
            }
        }
        stream.flush().await
    }
}

/// Counts a connection as open while it lives.
struct Open(Arc<Stats>);

impl Open {
    fn new(stats: &Arc<Stats>) -> Self {
        stats.open.fetch_add(1, Relaxed);
        Self(Arc::clone(stats))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
