//! The few system calls of the shim, and the symbols that an executable without a C library must bring along: the one
//! file of it with unsafe code.
#![allow(unsafe_code)]

use core::arch::{asm, naked_asm};

/// A system call's error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const NOENT: Self = Self(2);
    pub(crate) const INTR: Self = Self(4);
    pub(crate) const AGAIN: Self = Self(11);
    pub(crate) const CONNREFUSED: Self = Self(111);
}

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const READ: usize = 0;
    pub(super) const WRITE: usize = 1;
    pub(super) const SOCKET: usize = 41;
    pub(super) const CONNECT: usize = 42;
    pub(super) const SENDTO: usize = 44;
    pub(super) const READLINKAT: usize = 267;
    pub(super) const OPENAT: usize = 257;
    pub(super) const PPOLL: usize = 271;
    pub(super) const CLOCK_GETTIME: usize = 228;
    pub(super) const EXIT_GROUP: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const READ: usize = 63;
    pub(super) const WRITE: usize = 64;
    pub(super) const SOCKET: usize = 198;
    pub(super) const CONNECT: usize = 203;
    pub(super) const SENDTO: usize = 206;
    pub(super) const READLINKAT: usize = 78;
    pub(super) const OPENAT: usize = 56;
    pub(super) const PPOLL: usize = 73;
    pub(super) const CLOCK_GETTIME: usize = 113;
    pub(super) const EXIT_GROUP: usize = 94;
}

// The entry point: the kernel leaves argc, argv and the rest on the stack, and nothing to return to.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!("xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {start}", "ud2", start = sym start)
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!("mov x29, #0", "mov x30, #0", "mov x0, sp", "bl {start}", "brk #1", start = sym start)
}

/// `stack` points at argc, with argv behind it.
unsafe extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: the kernel puts argc and that many pointers to NUL-terminated strings there, and they stay for ever.
    let args = unsafe { Arguments::new(stack.add(1).cast(), *stack) };
    exit(crate::run(args))
}

#[derive(Clone)]
pub(crate) struct Arguments {
    next: *const *const u8,
    left: usize,
}

impl Arguments {
    /// # Safety
    /// There are `count` pointers at `first`, to strings that end in NUL and live for ever.
    unsafe fn new(first: *const *const u8, count: usize) -> Self {
        Self {
            next: first,
            left: count,
        }
    }
}

impl Arguments {
    /// Overwrites all arguments but the first of those that are left, so that `/proc/PID/cmdline` shows them no more.
    pub(crate) fn wipe(mut self) {
        let _ = self.next();
        while let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            // SAFETY: as promised to `new`. The strings lie on the process's own stack, and nobody reads one any more:
            // the slices that `next` gives are used up where `wipe` is called.
            unsafe {
                let mut byte = (*self.next).cast_mut();
                self.next = self.next.add(1);
                while byte.read_volatile() != 0 {
                    byte.write_volatile(0);
                    byte = byte.add(1);
                }
            }
        }
    }
}

impl Iterator for Arguments {
    type Item = &'static [u8];

    fn next(&mut self) -> Option<&'static [u8]> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: as promised to `new`; `left` counts the pointers that are still unread.
        unsafe {
            let arg = *self.next;
            self.next = self.next.add(1);
            Some(core::ffi::CStr::from_ptr(arg.cast()).to_bytes())
        }
    }
}

/// # Safety
/// As the system call says; pointers among the arguments are good for what it does with them.
#[cfg(target_arch = "x86_64")]
unsafe fn syscall(number: usize, a: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel's calling convention; it clobbers rcx and r11 only.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    outcome(result)
}

/// # Safety
/// As the system call says; pointers among the arguments are good for what it does with them.
#[cfg(target_arch = "aarch64")]
unsafe fn syscall(number: usize, a: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel's calling convention.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a[0] => result, in("x1") a[1], in("x2") a[2], in("x3") a[3],
            in("x4") a[4], in("x5") a[5], options(nostack));
    }
    outcome(result)
}

fn outcome(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno(i32::try_from(-result).unwrap_or(i32::MAX)))
}

pub(crate) fn exit(code: usize) -> ! {
    loop {
        // SAFETY: takes no pointer and does not return.
        let _ = unsafe { syscall(number::EXIT_GROUP, [code, 0, 0, 0, 0, 0]) };
    }
}

/// Reads into `buffer`; 0 is the end.
pub(crate) fn read(fd: usize, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most the buffer's length.
    unsafe { syscall(number::READ, [fd, buffer.as_mut_ptr().addr(), buffer.len(), 0, 0, 0]) }
}

/// Writes some of `bytes`.
pub(crate) fn write(fd: usize, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel only reads the bytes.
    unsafe { syscall(number::WRITE, [fd, bytes.as_ptr().addr(), bytes.len(), 0, 0, 0]) }
}

/// Sends some of `bytes` on a socket, without a signal if the other side is gone.
pub(crate) fn send(fd: usize, bytes: &[u8]) -> Result<usize, Errno> {
    const MSG_NOSIGNAL: usize = 0x4000;
    // SAFETY: the kernel only reads the bytes.
    unsafe {
        syscall(
            number::SENDTO,
            [fd, bytes.as_ptr().addr(), bytes.len(), MSG_NOSIGNAL, 0, 0],
        )
    }
}

const AT_FDCWD: usize = (-100_isize).cast_unsigned();

pub(crate) fn read_link<'a>(path: &core::ffi::CStr, buffer: &'a mut [u8]) -> Result<&'a mut [u8], Errno> {
    let arguments = [
        AT_FDCWD,
        path.as_ptr().addr(),
        buffer.as_mut_ptr().addr(),
        buffer.len(),
        0,
        0,
    ];
    // SAFETY: the path ends in NUL; the kernel writes at most the buffer's length.
    let length = unsafe { syscall(number::READLINKAT, arguments) }?;
    Ok(&mut buffer[..length])
}

/// Opens a directory as a place to start from.
pub(crate) fn open_directory(path: &core::ffi::CStr) -> Result<usize, Errno> {
    const O_PATH: usize = 0o10_000_000;
    const O_CLOEXEC: usize = 0o2_000_000;
    // SAFETY: the path ends in NUL.
    unsafe {
        syscall(
            number::OPENAT,
            [AT_FDCWD, path.as_ptr().addr(), O_PATH | O_CLOEXEC, 0, 0, 0],
        )
    }
}

/// A non-blocking Unix stream socket.
pub(crate) fn socket() -> Result<usize, Errno> {
    const AF_UNIX: usize = 1;
    const STREAM_CLOEXEC_NONBLOCK: usize = 0o2_004_001;
    // SAFETY: takes no pointer.
    unsafe { syscall(number::SOCKET, [AF_UNIX, STREAM_CLOEXEC_NONBLOCK, 0, 0, 0, 0]) }
}

/// The address of a Unix socket.
#[repr(C)]
pub(crate) struct SocketAddress {
    family: u16,
    path: [u8; Self::MAX],
}

impl SocketAddress {
    /// Longest path, with its NUL.
    const MAX: usize = 108;

    /// An address out of a path in pieces, or none if it is too long.
    pub(crate) fn new(pieces: &[&[u8]]) -> Option<Self> {
        let mut path = [0; Self::MAX];
        let mut length = 0;
        for piece in pieces {
            let end = length + piece.len();
            path.get_mut(length..end)
                .filter(|_| end < Self::MAX)?
                .copy_from_slice(piece);
            length = end;
        }
        Some(Self { family: 1, path })
    }
}

pub(crate) fn connect(fd: usize, address: &SocketAddress) -> Result<(), Errno> {
    // SAFETY: the address has the form that the kernel expects, and it reads no more than its size.
    unsafe {
        syscall(
            number::CONNECT,
            [fd, (&raw const *address).addr(), size_of::<SocketAddress>(), 0, 0, 0],
        )
        .map(|_| ())
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Interest {
    Read = 1,
    Write = 4,
}

/// Waits until the socket is ready, or the time is over: then `false`.
pub(crate) fn wait(fd: usize, interest: Interest, nanoseconds: u64) -> Result<bool, Errno> {
    #[repr(C)]
    struct PollFd {
        fd: i32,
        events: i16,
        revents: i16,
    }
    let mut poll = PollFd {
        fd: i32::try_from(fd).unwrap_or(-1),
        events: interest as i16,
        revents: 0,
    };
    let limit = Timespec::from(nanoseconds);
    let arguments = [(&raw mut poll).addr(), 1, (&raw const limit).addr(), 0, 8, 0];
    // SAFETY: one entry, and a time that the kernel only reads.
    unsafe { syscall(number::PPOLL, arguments).map(|ready| ready > 0) }
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

const NANOSECONDS: u64 = 1_000_000_000;

impl From<u64> for Timespec {
    fn from(nanoseconds: u64) -> Self {
        Self {
            seconds: i64::try_from(nanoseconds / NANOSECONDS).unwrap_or(i64::MAX),
            nanoseconds: i64::try_from(nanoseconds % NANOSECONDS).unwrap_or_default(),
        }
    }
}

/// Nanoseconds on a clock that nobody sets.
pub(crate) fn monotonic() -> u64 {
    const CLOCK_MONOTONIC: usize = 1;
    let mut now = Timespec {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: the kernel writes one timespec. It can't fail with this clock; if it did, the time would stand still.
    let _ = unsafe {
        syscall(
            number::CLOCK_GETTIME,
            [CLOCK_MONOTONIC, (&raw mut now).addr(), 0, 0, 0, 0],
        )
    };
    u64::try_from(now.seconds).unwrap_or(0) * NANOSECONDS + u64::try_from(now.nanoseconds).unwrap_or(0)
}

// The compiler calls these by name. Volatile accesses keep it from seeing in them the very functions that they are.

/// # Safety
/// As C's memcpy.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    for index in 0..length {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(from.add(index).read_volatile()) };
    }
    to
}

/// # Safety
/// As C's memmove.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    if to.addr() <= from.addr() {
        // SAFETY: forward is right where the destination comes first.
        return unsafe { memcpy(to, from, length) };
    }
    for index in (0..length).rev() {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(from.add(index).read_volatile()) };
    }
    to
}

/// # Safety
/// As C's memset.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    for index in 0..length {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(byte.to_le_bytes()[0]) };
    }
    to
}

/// # Safety
/// As C's memcmp.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, length: usize) -> i32 {
    for index in 0..length {
        // SAFETY: the caller's.
        let (a, b) = unsafe { (a.add(index).read_volatile(), b.add(index).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
/// As C's bcmp.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, length: usize) -> i32 {
    // SAFETY: the caller's.
    unsafe { memcmp(a, b, length) }
}

/// # Safety
/// As C's strlen.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller's text ends in NUL.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

/// Named by the core library as it is shipped; nothing ever unwinds here.
#[cfg(panic = "abort")]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
