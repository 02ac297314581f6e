/* An empty library whose SONAME is libcuda.so: programs that open that name get the library with
 * SONAME libcuda.so.1, on which this one depends. */
typedef int gs_alias_is_not_empty;
