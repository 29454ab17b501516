/* SPDX-License-Identifier: Apache-2.0
 *
 * Assembler macros of the generated exports.S. A pass-through is one indirect tail jump, so
 * arguments, their number and the return value of every driver function stay as they are. The table
 * entry first points at a resolver, which saves all argument registers, asks qg_resolve() for the
 * real address (it stores it in the table) and jumps there. Hooks call the driver through the same
 * table, so they resolve the same way.
 */
/* clang-format off */
#if !defined(__x86_64__)
#error "pass-throughs are written for x86-64 only so far"
#endif

.macro PASS name index
    .text
    .balign 16
    .globl \name
    .type \name, @function
\name:
    endbr64
    jmp *qg_real+8*\index(%rip)
    .size \name, .-\name
.endm

.macro LAZY index
    .text
.Llazy_\index:
    endbr64
    movl $\index, %r11d
    jmp .Lresolve
.endm

.macro TABLE name
    .globl \name
    .hidden \name
    .type \name, @object
\name:
.endm

    .text
    .type .Lresolve, @function
.Lresolve:
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    andq $-64, %rsp
    subq $192, %rsp
    movq %rdi, 128(%rsp)
    movq %rsi, 136(%rsp)
    movq %rdx, 144(%rsp)
    movq %rcx, 152(%rsp)
    movq %r8, 160(%rsp)
    movq %r9, 168(%rsp)
    movq %rax, 176(%rsp)
    movaps %xmm0, (%rsp)
    movaps %xmm1, 16(%rsp)
    movaps %xmm2, 32(%rsp)
    movaps %xmm3, 48(%rsp)
    movaps %xmm4, 64(%rsp)
    movaps %xmm5, 80(%rsp)
    movaps %xmm6, 96(%rsp)
    movaps %xmm7, 112(%rsp)
    movl %r11d, %edi
    call qg_resolve
    movq %rax, %r11
    movaps (%rsp), %xmm0
    movaps 16(%rsp), %xmm1
    movaps 32(%rsp), %xmm2
    movaps 48(%rsp), %xmm3
    movaps 64(%rsp), %xmm4
    movaps 80(%rsp), %xmm5
    movaps 96(%rsp), %xmm6
    movaps 112(%rsp), %xmm7
    movq 128(%rsp), %rdi
    movq 136(%rsp), %rsi
    movq 144(%rsp), %rdx
    movq 152(%rsp), %rcx
    movq 160(%rsp), %r8
    movq 168(%rsp), %r9
    movq 176(%rsp), %rax
    leave
    .cfi_def_cfa %rsp, 8
    jmp *%r11
    .cfi_endproc
