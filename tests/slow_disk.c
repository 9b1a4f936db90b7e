// A slow disk: this library is loaded in front of the C library, and every flush waits before it is passed on.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void wait_for_the_disk(void) {
    struct timespec delay = {.tv_sec = 0, .tv_nsec = DELAY_IN_NANOSECONDS};
    nanosleep(&delay, 0);
}

int fsync(int file) {
    wait_for_the_disk();
    return syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    wait_for_the_disk();
    return syscall(SYS_fdatasync, file);
}
