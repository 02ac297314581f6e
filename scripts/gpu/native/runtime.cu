// A program of CUDA's runtime for scripts/gpu/sharing, compiled by nvcc with a default stream for
// each thread: it records graphs, takes memory up to the limit, and resets its device.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>

static std::map<std::string, long> errors;

static bool good(const char *what, cudaError_t result) {
    if (result != cudaSuccess) errors[std::string(what) + " " + std::to_string(int(result))]++;
    return result == cudaSuccess;
}

__global__ void add_one(unsigned int *counter) { atomicAdd(counter, 1); }

__global__ void spin(long long cycles) {
    for (long long begun = clock64(); clock64() - begun < cycles;) continue;
}

static double now_s() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

static bool record(unsigned int *counter, int kernels, bool replays) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    bool whole = good("begin", cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < kernels && whole; i++) {
        add_one<<<1, 1, 0, cudaStreamPerThread>>>(counter);
        whole = good("launch", cudaGetLastError());
    }
    whole = good("end", cudaStreamEndCapture(cudaStreamPerThread, &graph)) && whole;
    if (whole && replays) {
        whole = good("instantiate", cudaGraphInstantiate(&executable, graph, 0)) &&
                good("replay", cudaGraphLaunch(executable, cudaStreamPerThread)) &&
                good("wait", cudaStreamSynchronize(cudaStreamPerThread));
        if (executable != nullptr) cudaGraphExecDestroy(executable);
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    return whole;
}

int main(int count, char **words) {
    const double seconds = count > 1 ? atof(words[1]) : 3;
    const int kernels = 5;
    unsigned int *counter = nullptr, found = 0;
    long recorded = 0, of = 0, expected = 0;
    size_t got = 0;
    void *piece = nullptr;
    good("malloc", cudaMalloc(&counter, 256));
    good("fill", cudaMemset(counter, 0, 256));
    spin<<<256, 1024>>>(1000);
    good("wait", cudaDeviceSynchronize());
    puts("\"ready\"");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    for (const double end_s = now_s() + seconds; now_s() < end_s; of++) {
        const bool replays = of % 10 == 0;
        const bool whole = record(counter, kernels, replays);
        recorded += whole;
        if (whole && replays) expected += kernels;
        spin<<<256, 1024>>>(50000);
        good("launch", cudaGetLastError());
        if (of % 4 == 0) good("wait", cudaStreamSynchronize(cudaStreamPerThread));
    }
    good("copy", cudaMemcpy(&found, counter, sizeof found, cudaMemcpyDeviceToHost));
    while (cudaMalloc(&piece, size_t(64) << 20) == cudaSuccess) got += size_t(64) << 20;
    const int refused = int(cudaGetLastError());
    good("reset", cudaDeviceReset());
    good("again", cudaMalloc(&piece, 4096));
    spin<<<256, 1024>>>(1000);
    good("wait", cudaDeviceSynchronize());
    printf("{\"of\": %ld, \"recorded\": %ld, \"replayed\": %ld, \"counted\": %u, \"got_bytes\": %zu, "
           "\"refused\": %d, \"errors\": {", of, recorded, expected, found, got, refused);
    bool first = true;
    for (const auto &error : errors) {
        printf("%s\"%s\": %ld", first ? "" : ", ", error.first.c_str(), error.second);
        first = false;
    }
    puts("}}");
    return 0;
}
