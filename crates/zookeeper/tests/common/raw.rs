//! The plainest client there can be, for looking behind the store's back: one connection, one request at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A session with one server. It lapses by itself when dropped.
pub(crate) struct Raw {
    stream: TcpStream,
    xid: i32,
}

impl Raw {
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> Raw {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket has timeouts");
        let mut hello = Vec::new();
        hello.extend(0_i32.to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        hello.extend(10_000_i32.to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        hello.extend(16_i32.to_be_bytes());
        hello.extend([0; 17]);
        send(&mut stream, &hello);
        receive(&mut stream);
        Raw { stream, xid: 0 }
    }

    /// The names of a node's children; `None` if there is no such node.
    pub(crate) fn children(&mut self, path: &str) -> Option<Vec<String>> {
        let mut body = text(path);
        body.push(0);
        let answer = self.call(8, &body).ok()?;
        let mut rest = &answer[4..];
        let mut names = Vec::new();
        while let Some((length, tail)) = rest.split_first_chunk() {
            let (name, tail) = tail.split_at(i32::from_be_bytes(*length) as usize);
            names.push(String::from_utf8(name.to_vec()).expect("names are text"));
            rest = tail;
        }
        Some(names)
    }

    /// What a node says.
    #[allow(dead_code)] // not every test file looks at that
    pub(crate) fn data(&mut self, path: &str) -> Option<Vec<u8>> {
        let mut body = text(path);
        body.push(0);
        let answer = self.call(4, &body).ok()?;
        let length = i32::from_be_bytes(answer[..4].try_into().expect("four bytes")).max(0) as usize;
        Some(answer[4..4 + length].to_vec())
    }

    /// Deletes a node; the server's own error number if it says no.
    #[allow(dead_code)]
    pub(crate) fn delete(&mut self, path: &str) -> Result<(), i32> {
        let mut body = text(path);
        body.extend((-1_i32).to_be_bytes());
        self.call(2, &body).map(drop)
    }

    /// Makes a node that stays, for everybody; the server's own error number if it says no.
    #[allow(dead_code)]
    pub(crate) fn create(&mut self, path: &str, data: &[u8]) -> Result<(), i32> {
        let mut body = text(path);
        body.extend((data.len() as i32).to_be_bytes());
        body.extend(data);
        body.extend(everybody_may(31));
        body.extend(0_i32.to_be_bytes());
        self.call(1, &body).map(drop)
    }

    /// From now on nobody may make a node beneath this one, or change that.
    #[allow(dead_code)]
    pub(crate) fn close_for_all(&mut self, path: &str) {
        let mut body = text(path);
        body.extend(everybody_may(1));
        body.extend((-1_i32).to_be_bytes());
        self.call(7, &body).expect("nobody has closed it before");
    }

    /// How many nodes are beneath one.
    #[allow(dead_code)]
    pub(crate) fn beneath(&mut self, path: &str) -> usize {
        self.sync(path);
        let children = self.children(path).unwrap_or_default();
        children.iter().map(|child| 1 + self.beneath(&format!("{path}/{child}"))).sum()
    }

    /// Lets the server catch up with its leader.
    pub(crate) fn sync(&mut self, path: &str) {
        let _ = self.call(9, &text(path));
    }

    fn call(&mut self, op: i32, body: &[u8]) -> Result<Vec<u8>, i32> {
        self.xid += 1;
        let mut message = self.xid.to_be_bytes().to_vec();
        message.extend(op.to_be_bytes());
        message.extend(body);
        send(&mut self.stream, &message);
        let answer = receive(&mut self.stream);
        match i32::from_be_bytes(answer[12..16].try_into().expect("four bytes")) {
            0 => Ok(answer[16..].to_vec()),
            error => Err(error),
        }
    }
}

/// An ACL with these rights for everybody; 1 is to read, 31 is everything.
fn everybody_may(rights: i32) -> Vec<u8> {
    [&1_i32.to_be_bytes()[..], &rights.to_be_bytes(), &text("world"), &text("anyone")].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as i32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn send(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(&[&(message.len() as i32).to_be_bytes()[..], message].concat()).expect("the server reads");
}

fn receive(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("the server answers");
    let mut answer = vec![0; i32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).expect("the server answers");
    answer
}
