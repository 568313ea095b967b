//! A server that answers with whatever a function says: credential endpoints, clouds that are not here.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::wire::{self, Message};

/// The running server; it stops when the test's runtime does.
#[derive(Clone)]
pub(crate) struct Fake {
    address: SocketAddr,
    log: Arc<Mutex<Vec<Message>>>,
}

impl Fake {
    pub(crate) async fn start(answer: impl Fn(&Message) -> Message + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self {
            address: listener.local_addr().unwrap(),
            log: Arc::default(),
        };
        let (log, answer) = (Arc::clone(&fake.log), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                tokio::spawn(async move {
                    let mut socket = BufReader::new(socket);
                    while let Ok(Some(request)) = wire::read(&mut socket, true).await {
                        log.lock().unwrap().push(request.clone());
                        let reply = answer(&request);
                        let bytes = if request.method() == "HEAD" {
                            let mut reply = reply;
                            if reply.header("content-length").is_none() {
                                reply.set("content-length", reply.body.len().to_string());
                            }
                            reply.head()
                        } else {
                            reply.bytes()
                        };
                        if socket.get_mut().write_all(&bytes).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        fake
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn log(&self) -> Vec<Message> {
        self.log.lock().unwrap().clone()
    }
}
