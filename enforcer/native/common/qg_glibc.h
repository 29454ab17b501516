/* SPDX-License-Identifier: Apache-2.0
 *
 * For libraries that are loaded into users' programs; the compiler includes it before each of their
 * sources (QG_OLD_GLIBC in the Makefile). They must load in containers with an older glibc than the
 * build machine's, down to 2.17. glibc 2.32 to 2.38 gave many functions a newer symbol version.
 * Their changes do not matter here. This asks for the old version, which every glibc has.
 * packaging/glibc.py fails the build if a newer version is used.
 */
#ifndef QG_GLIBC_H
#define QG_GLIBC_H

#include <features.h>

/* Since 2.38 strtol() and sscanf() also read 0b101 and are called __isoc23_strtol and so on. No
 * source here needs that, and an older glibc lacks the names. */
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#if defined(__x86_64__)
#define QG_GLIBC_BASE   "GLIBC_2.2.5"
#define QG_GLIBC_DLINFO "GLIBC_2.3.3"
#define QG_STAT_VERSION 1
#elif defined(__aarch64__)
#define QG_GLIBC_BASE   "GLIBC_2.17"
#define QG_GLIBC_DLINFO "GLIBC_2.17"
#define QG_STAT_VERSION 0
#else
#error "the first version of glibc for this processor is not known here"
#endif

#define QG_GLIBC(name, version) __asm__(".symver " #name "," #name "@" version)
#define QG_OLD(name)            QG_GLIBC(name, QG_GLIBC_BASE)

/* functions of libdl, which was a library of its own until 2.34 */
QG_OLD(dladdr);
QG_OLD(dlclose);
QG_OLD(dlerror);
QG_OLD(dlopen);
QG_OLD(dlsym);
QG_OLD(dlvsym);
QG_GLIBC(dlinfo, QG_GLIBC_DLINFO);

/* functions of libpthread, which was a library of its own until 2.34 */
QG_OLD(pthread_attr_setstacksize);
QG_OLD(pthread_create);
QG_OLD(pthread_detach);
QG_OLD(pthread_getspecific);
QG_OLD(pthread_join);
QG_OLD(pthread_key_create);
QG_OLD(pthread_key_delete);
QG_OLD(pthread_kill);
QG_OLD(pthread_mutex_trylock);
QG_OLD(pthread_mutexattr_destroy);
QG_OLD(pthread_mutexattr_init);
QG_OLD(pthread_mutexattr_settype);
QG_OLD(pthread_once);
QG_OLD(pthread_rwlock_rdlock);
QG_OLD(pthread_rwlock_tryrdlock);
QG_OLD(pthread_rwlock_trywrlock);
QG_OLD(pthread_rwlock_unlock);
QG_OLD(pthread_rwlock_wrlock);
QG_OLD(pthread_setspecific);
QG_OLD(pthread_sigmask);

/* functions of libm: since 2.29 they no longer set errno in the way of SVID */
QG_OLD(exp);
QG_OLD(log);
QG_OLD(pow);

/* Until 2.33 stat() and its relatives were inline functions. They called these, whose first
 * argument is the version of struct stat. */
#ifndef __ASSEMBLER__
#include <sys/stat.h>

int __fxstat(int version, int fd, struct stat *st);
int __xstat(int version, const char *path, struct stat *st);
int __lxstat(int version, const char *path, struct stat *st);
int __fxstatat(int version, int dir, const char *path, struct stat *st, int flags);

static inline int qg_fstat(int fd, struct stat *st)
{
    return __fxstat(QG_STAT_VERSION, fd, st);
}

static inline int qg_stat(const char *path, struct stat *st)
{
    return __xstat(QG_STAT_VERSION, path, st);
}

static inline int qg_lstat(const char *path, struct stat *st)
{
    return __lxstat(QG_STAT_VERSION, path, st);
}

static inline int qg_fstatat(int dir, const char *path, struct stat *st, int flags)
{
    return __fxstatat(QG_STAT_VERSION, dir, path, st, flags);
}

#define fstat          qg_fstat
#define stat(path, st) qg_stat(path, st) /* a macro with arguments leaves `struct stat` alone */
#define lstat          qg_lstat
#define fstatat        qg_fstatat
#endif

#endif
