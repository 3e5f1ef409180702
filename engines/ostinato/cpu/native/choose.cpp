// Which instruction set this processor offers, asked once.
#include <cstring>

#include "job.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ostinato {

const Kernels* plain_kernels(int32_t dtype);
const Kernels* avx2_kernels(int32_t dtype);
const Kernels* avx512_kernels(int32_t dtype);
const Kernels* avx512bf16_kernels(int32_t dtype);
const Kernels* amx_kernels(int32_t dtype);

const char* const ISAS[] = {"amx", "avx512bf16", "avx512", "avx2", "plain", nullptr};

namespace {

bool offered(const char* isa) {
  if (!std::strcmp(isa, "plain")) return true;
#if defined(__x86_64__)
  if (!std::strcmp(isa, "avx2"))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!std::strcmp(isa, "avx512")) return avx512;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool bf16 = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
  if (!std::strcmp(isa, "avx512bf16")) return avx512 && bf16;
  const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
  // The system keeps a thread's tiles (ARCH_REQ_XCOMP_PERM, XTILEDATA) only for a process that asks; threads begun
  // after this have them.
  if (!std::strcmp(isa, "amx")) return avx512 && bf16 && tiles && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#endif
  return false;
}

}  // namespace

const Kernels* kernels(const char* isa, int32_t dtype) {
  if (!offered(isa)) return nullptr;
  if (!std::strcmp(isa, "amx")) return amx_kernels(dtype);
  if (!std::strcmp(isa, "avx512bf16")) return avx512bf16_kernels(dtype);
  if (!std::strcmp(isa, "avx512")) return avx512_kernels(dtype);
  if (!std::strcmp(isa, "avx2")) return avx2_kernels(dtype);
  return plain_kernels(dtype);
}

}  // namespace ostinato
