//! A thread for a system call that may block. If no thread can be started, as when the process limit is reached, this
//! returns an error; the runtime's own pool would end the whole program.

use std::io;

use tokio::sync::oneshot;

/// Runs `act` in a thread of its own, and waits for it. If the future is dropped, the thread continues.
pub async fn run<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("system-call".to_owned())
        .spawn(move || {
            // The future may have been dropped.
            let _ = done.send(act());
        })?;
    result
        .await
        .map_err(|_| io::Error::other("the thread ended without a result"))
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn what_it_finds_comes_back_and_others_go_on_meanwhile() {
        let (release, held) = std::sync::mpsc::channel();
        let slow = super::run(move || held.recv());
        let quick = async {
            assert_eq!(super::run(|| 7).await.unwrap(), 7);
            release.send(8).unwrap();
        };
        let (slow, ()) = tokio::join!(slow, quick);
        assert_eq!(slow.unwrap(), Ok(8));
    }
}
