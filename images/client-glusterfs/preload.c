/* Preloaded by glusterfs. */
extern void *dlsym(void *handle, const char *symbol);
extern char *getenv(const char *name);
extern char *strstr(const char *text, const char *part);

#define NEXT ((void *)-1L) /* RTLD_NEXT */

/* It loads a module by a name that a server sends, as "<its directory>/<name>.so". A name with ".." leads to any file
 * of the container, such as one that a Pod has written below the kubelet's root. */
void *dlopen(const char *path, int flags)
{
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(NEXT, "dlopen");

    if (path && strstr(path, "/../"))
        path = "/a module outside of the directory of GlusterFS";
    return next(path, flags);
}

/* It mounts nothing but the volume, and has no option for the source that the mount shows. */
int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)
{
    int (*next)(const char *, const char *, const char *, unsigned long, const void *) =
        (int (*)(const char *, const char *, const char *, unsigned long, const void *))dlsym(NEXT, "mount");
    const char *id = getenv("MOORING_VOLUME_ID");

    return next(id && *id ? id : source, target, type, flags, data);
}
