//! A thread for a system call that may block. If no thread can be started, as when the process limit is reached, this
//! returns an error; the runtime's own pool would end the whole program.

use std::io;

use tokio::sync::oneshot;

use super::raw;

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

/// As [`run`], for an act that opens files of a server and may never end. `act` must own no file, and gives none back.
///
/// What a thread has open, every program that another thread starts has too until it is executed. Closing it then asks
/// the FUSE daemon behind the file (`flush` of `fs/fuse/file.c`), and whoever starts the program waits for that: one
/// silent server would hold up all others. So this thread shares no open files with the rest of the process.
pub async fn run_apart<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let apart = move || {
        // Where the kernel can't, the thread is like any other.
        let _ = raw::leave_files();
        act()
    };
    // Whoever wakes the runtime needs its files, so a second thread does that.
    run(move || {
        let thread = std::thread::Builder::new().name("apart".to_owned()).spawn(apart)?;
        let ended = || io::Error::other("the thread ended without a result");
        thread.join().map_err(|_| ended())
    })
    .await?
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

    #[tokio::test]
    async fn what_is_opened_apart_nobody_else_has_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, "x").unwrap();
        let is_open = |path: &std::path::Path| {
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            all.filter_map(|entry| std::fs::read_link(entry.path()).ok())
                .any(|open| open == path)
        };
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (opened, is_opened) = std::sync::mpsc::channel();
        let file = path.clone();
        let apart = super::run_apart(move || {
            let open = std::fs::File::open(&file);
            opened.send(open.is_ok()).unwrap();
            let _ = held.recv();
            std::io::read_to_string(open.unwrap()).unwrap()
        });
        let look = async {
            assert!(super::run(move || is_opened.recv()).await.unwrap().unwrap());
            assert!(!is_open(&path), "others have it open");
            release.send(()).unwrap();
        };
        let (read, ()) = tokio::join!(apart, look);
        assert_eq!(read.unwrap(), "x");
        // Nothing else happens that would wake the runtime.
        let later = super::run_apart(|| std::thread::sleep(std::time::Duration::from_millis(200)));
        tokio::time::timeout(std::time::Duration::from_secs(20), later)
            .await
            .unwrap()
            .unwrap();
        let kept = std::fs::File::open(&path).unwrap();
        assert!(is_open(&path));
        drop(kept);
    }
}
