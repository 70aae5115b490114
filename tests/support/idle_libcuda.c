/* A libcuda.so.1 without a driver: every function that a control program of R580 or newer calls reports success.
   Without this library, these programs do not start on a machine without a GPU. */

static long succeed(void) { return 0; }
static const void *const table[64] = {(void *)sizeof table, [1 ... 63] = (void *)succeed};

int cuGetExportTable(const void **functions, const void *id) {
    *functions = table;
    return 0;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = 0;
    return 0;
}
