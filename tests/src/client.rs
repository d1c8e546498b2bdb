//! A client: HTTP/1.1 connections whose steps a test can place, and UDP questions.

use crate::bytes;
use anyhow::{Context as _, Result, bail, ensure};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpSocket, TcpStream, UdpSocket},
    time::timeout,
};

/// Longer than any answer takes on the slowest machine: past it a packet was lost for good.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Name of the backend that answered.
    pub backend: String,
    /// The client's address as the backend saw it.
    pub client: SocketAddr,
    /// What it said.
    pub body: Vec<u8>,
}

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    local: SocketAddr,
}

impl Connection {
    /// Connects, from any port.
    pub async fn open(to: SocketAddr) -> Result<Self> {
        Self::open_from(to, 0).await
    }

    /// Connects from a given port, so that a test decides on the whole 5-tuple.
    pub async fn open_from(to: SocketAddr, port: u16) -> Result<Self> {
        let (socket, any) = match to {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (TcpSocket::new_v6()?, Ipv6Addr::UNSPECIFIED.into()),
        };
        if port != 0 {
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::new(any, port))?;
        }
        let stream = timeout(PATIENCE, socket.connect(to))
            .await
            .with_context(|| format!("no answer from {to} to a SYN"))?
            .with_context(|| format!("cannot connect to {to}"))?;
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        Ok(Self {
            stream: BufReader::with_capacity(64 * 1024, stream),
            local,
        })
    }

    /// The client's end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Asks for a path and keeps the connection.
    pub async fn get(&mut self, path: &str) -> Result<Reply> {
        self.request(path, "keep-alive").await?;
        let (mut reply, length) = self.head().await?;
        reply.body = vec![0; usize::try_from(length)?];
        timeout(PATIENCE, self.stream.read_exact(&mut reply.body))
            .await
            .with_context(|| format!("the answer of {} stopped", reply.backend))??;
        Ok(reply)
    }

    /// Asks for a path, and has both sides close.
    pub async fn get_last(mut self, path: &str) -> Result<Reply> {
        self.request(path, "close").await?;
        let (mut reply, _) = self.head().await?;
        timeout(PATIENCE, self.stream.read_to_end(&mut reply.body))
            .await
            .with_context(|| format!("the answer of {} stopped", reply.backend))??;
        Ok(reply)
    }

    /// Downloads that many bytes, and checks each.
    pub async fn download(&mut self, length: u64) -> Result<Reply> {
        self.request(&format!("/bytes/{length}"), "keep-alive")
            .await?;
        let (reply, said) = self.head().await?;
        ensure!(said == length, "asked for {length} bytes, offered {said}");
        let mut received = 0;
        while received < length {
            let piece = timeout(PATIENCE, self.stream.fill_buf())
                .await
                .with_context(|| format!("nothing came after byte {received}"))??;
            ensure!(!piece.is_empty(), "closed after {received} bytes");
            if let Some(place) = bytes::first_wrong(received, piece) {
                bail!("byte {place} is wrong");
            }
            let piece = piece.len();
            received += piece as u64;
            self.stream.consume(piece);
        }
        ensure!(received == length, "{received} bytes came, not {length}");
        Ok(reply)
    }

    async fn request(&mut self, path: &str, connection: &str) -> Result<()> {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: vip\r\nconnection: {connection}\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
        Ok(())
    }

    async fn head(&mut self) -> Result<(Reply, u64)> {
        let status = self.line().await?;
        ensure!(status == "HTTP/1.1 200 OK", "the answer is {status:?}");
        let (mut backend, mut client, mut length) = (None, None, None);
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            match line.split_once(": ") {
                Some(("x-backend", value)) => backend = Some(value.to_owned()),
                Some(("x-client", value)) => client = Some(value.parse()?),
                Some(("content-length", value)) => length = Some(value.parse()?),
                _ => {}
            }
        }
        let reply = Reply {
            backend: backend.context("no x-backend")?,
            client: client.context("no x-client")?,
            body: Vec::new(),
        };
        Ok((reply, length.context("no content-length")?))
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        timeout(PATIENCE, self.stream.read_line(&mut line))
            .await
            .context("no answer to a request")??;
        ensure!(line.ends_with("\r\n"), "closed in the middle of an answer");
        line.truncate(line.len() - 2);
        Ok(line)
    }
}

/// One request on a connection of its own.
pub async fn get(to: SocketAddr, path: &str) -> Result<Reply> {
    Connection::open(to).await?.get_last(path).await
}

/// A UDP socket that asks one server.
#[derive(Debug)]
pub struct Questions {
    socket: UdpSocket,
}

impl Questions {
    /// A socket of its own port.
    pub async fn to(server: SocketAddr) -> Result<Self> {
        let any = match server {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(any).await?;
        // Connected: an answer from another address than asked would not come through.
        socket.connect(server).await?;
        Ok(Self { socket })
    }

    /// Sends a datagram, checks that its echo is whole, and returns the backend's name.
    pub async fn ask(&self, payload: &[u8]) -> Result<String> {
        self.socket.send(payload).await?;
        let mut buffer = vec![0; 65_536];
        let length = timeout(PATIENCE, self.socket.recv(&mut buffer))
            .await
            .context("no answer to a datagram")??;
        let answer = &buffer[..length];
        let space = answer
            .iter()
            .position(|b| *b == b' ')
            .context("an answer without a name")?;
        ensure!(&answer[space + 1..] == payload, "the echo is another");
        Ok(String::from_utf8_lossy(&answer[..space]).into_owned())
    }
}
