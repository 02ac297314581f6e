/* Entry points that are only passed on: a jump to the driver's function of that name, with all
 * registers and the stack as the caller left them. The first call looks the function up. */

#define GS_SYMBOL(index, name, base, version, flags, kind) GS_TRAMPOLINE_##kind index, name

    .text

#if defined(__x86_64__)

.macro GS_TRAMPOLINE_FORWARD index, name
    .globl \name
    .type \name, @function
    .balign 16
\name:
    movq gs_real@GOTPCREL(%rip), %r11
    movq (8 * \index)(%r11), %r11
    testq %r11, %r11
    je 1f
    jmp *%r11
1:  movl $\index, %eax
    jmp gs_look_up
    .size \name, . - \name
.endm
.macro GS_TRAMPOLINE_HOOK index, name
.endm

gs_look_up:
    pushq %rbp
    movq %rsp, %rbp
    andq $-16, %rsp
    subq $192, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movaps %xmm0, 48(%rsp)
    movaps %xmm1, 64(%rsp)
    movaps %xmm2, 80(%rsp)
    movaps %xmm3, 96(%rsp)
    movaps %xmm4, 112(%rsp)
    movaps %xmm5, 128(%rsp)
    movaps %xmm6, 144(%rsp)
    movaps %xmm7, 160(%rsp)
    movl %eax, %edi
    call gs_resolve@PLT
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movaps 48(%rsp), %xmm0
    movaps 64(%rsp), %xmm1
    movaps 80(%rsp), %xmm2
    movaps 96(%rsp), %xmm3
    movaps 112(%rsp), %xmm4
    movaps 128(%rsp), %xmm5
    movaps 144(%rsp), %xmm6
    movaps 160(%rsp), %xmm7
    movq %rbp, %rsp
    popq %rbp
    jmp *%r11

#elif defined(__aarch64__)

.macro GS_TRAMPOLINE_FORWARD index, name
    .globl \name
    .type \name, %function
    .balign 16
\name:
    adrp x16, :got:gs_real
    ldr x16, [x16, :got_lo12:gs_real]
    ldr x16, [x16, #(8 * \index)]
    cbz x16, 1f
    br x16
1:  mov w16, #\index
    b gs_look_up
    .size \name, . - \name
.endm
.macro GS_TRAMPOLINE_HOOK index, name
.endm

gs_look_up:
    stp x29, x30, [sp, #-224]!
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w16
    bl gs_resolve
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    br x16

#else
#error "GPU sharing by interception needs x86-64 or 64-bit ARM"
#endif

#include "symbols.inc"

    .section .note.GNU-stack, "", %progbits
