//! One operation at a time on a volume's directory.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::volume::job::MountError;
use crate::volume::target::Target;

type Running = Arc<Mutex<HashMap<PathBuf, (&'static str, Instant)>>>;

/// What is running where.
#[derive(Debug, Clone, Default)]
pub struct Guards(Running);

impl Guards {
    /// Begins an operation on a target; an error if one runs there already.
    pub fn enter(&self, target: &Target, operation: &'static str) -> Result<Guard, MountError> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let path = target.path();
        if let Some((operation, since)) = running.get(&path) {
            return Err(MountError::InProgress {
                operation: (*operation).to_owned(),
                seconds: since.elapsed().as_secs(),
            });
        }
        running.insert(path.clone(), (operation, Instant::now()));
        Ok(Guard {
            running: Arc::clone(&self.0),
            path,
        })
    }
}

/// A running operation, which ends when this is dropped.
#[derive(Debug)]
pub struct Guard {
    running: Running,
    path: PathBuf,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::Guards;
    use crate::sys::fake::target;
    use crate::volume::job::MountError;

    #[test]
    fn a_second_operation_on_a_target_gets_the_name_of_the_first() {
        let guards = Guards::default();
        let first = guards.enter(&target(), "mount").unwrap();
        let error = guards.enter(&target(), "unmount").unwrap_err();
        assert!(matches!(&error, MountError::InProgress { operation, .. } if operation == "mount"));
        drop(first);
        guards.enter(&target(), "unmount").unwrap();
    }
}
