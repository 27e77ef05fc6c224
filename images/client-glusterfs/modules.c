/* Preloaded by glusterfs, which loads a module by a name that a server sends, as "<its directory>/<name>.so". A name with
 * ".." leads to any file of the container, such as one that a Pod has written below the kubelet's root. */
extern void *dlsym(void *handle, const char *symbol);
extern char *strstr(const char *text, const char *part);

void *dlopen(const char *path, int flags)
{
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym((void *)-1L /* RTLD_NEXT */, "dlopen");

    if (path && strstr(path, "/../"))
        path = "/a module outside of the directory of GlusterFS";
    return next(path, flags);
}
