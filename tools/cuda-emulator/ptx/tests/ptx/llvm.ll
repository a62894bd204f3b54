; llc -march=nvptx64 -mcpu=sm_80 -mattr=+ptx75 llvm.ll -o llvm.ptx
target triple = "nvptx64-nvidia-cuda"
@tab = internal addrspace(4) constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
@sh = internal addrspace(3) global [64 x i32] undef, align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.shfl.sync.down.i32(i32, i32, i32, i32)
declare void @llvm.nvvm.barrier0()
define internal i32 @helper(i32 %x, {i32, i64} %s) noinline {
  %a = extractvalue {i32, i64} %s, 0
  %b = extractvalue {i32, i64} %s, 1
  %t = trunc i64 %b to i32
  %r = mul i32 %x, %a
  %q = add i32 %r, %t
  ret i32 %q
}
define void @k(i32 addrspace(1)* %out, <4 x float> %v, i8 %small, i1 %flag) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %buf = alloca [8 x i32]
  %i = and i32 %tid, 7
  %p = getelementptr [8 x i32], [8 x i32]* %buf, i32 0, i32 %i
  store i32 %tid, i32* %p
  %s0 = insertvalue {i32, i64} undef, i32 3, 0
  %s1 = insertvalue {i32, i64} %s0, i64 100, 1
  %h = call i32 @helper(i32 %tid, {i32, i64} %s1)
  %l = load i32, i32* %p
  %sum = add i32 %h, %l
  %shp = getelementptr [64 x i32], [64 x i32] addrspace(3)* @sh, i32 0, i32 %tid
  store i32 %sum, i32 addrspace(3)* %shp
  call void @llvm.nvvm.barrier0()
  %x = xor i32 %tid, 33
  %shq = getelementptr [64 x i32], [64 x i32] addrspace(3)* @sh, i32 0, i32 %x
  %y = load i32, i32 addrspace(3)* %shq
  %z = call i32 @llvm.nvvm.shfl.sync.down.i32(i32 -1, i32 %y, i32 1, i32 31)
  %e = extractelement <4 x float> %v, i32 2
  %ei = fptosi float %e to i32
  %sm = sext i8 %small to i32
  switch i32 %i, label %d [ i32 0, label %c0
    i32 1, label %c1
    i32 2, label %c2
    i32 3, label %c3 ]
c0: br label %d
c1: br label %d
c2: br label %d
c3: br label %d
d:
  %ph = phi i32 [ 0, %entry ], [ 10, %c0 ], [ 20, %c1 ], [30, %c2], [40, %c3]
  %w = add i32 %z, %ph
  %w2 = add i32 %w, %ei
  %w3 = add i32 %w2, %sm
  %fl = select i1 %flag, i32 1000, i32 0
  %w4 = add i32 %w3, %fl
  %o = getelementptr i32, i32 addrspace(1)* %out, i32 %tid
  store i32 %w4, i32 addrspace(1)* %o
  %old = atomicrmw add i32 addrspace(1)* %out, i32 0 seq_cst
  ret void
}
!nvvm.annotations = !{!0}
!0 = !{void (i32 addrspace(1)*, <4 x float>, i8, i1)* @k, !"kernel", i32 1}
