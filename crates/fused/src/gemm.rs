//! Placeholder
use crate::Element;
/// p
pub struct Product<'a, T> { /// m
 pub m: usize, /// m
 pub n: usize, /// m
 pub k: usize, /// m
 pub a: Matrix<'a, T>, /// m
 pub b: Matrix<'a, T>, /// m
 pub c: &'a mut [T] }
/// p
pub struct Matrix<'a, T> { /// m
 pub data: &'a [T], /// m
 pub row_stride: usize, /// m
 pub col_stride: usize }
/// p
pub fn products<T: Element>(list: Vec<Product<'_, T>>) {
    for Product { m, n, k, a, b, c } in list {
        for i in 0..m { for j in 0..n {
            let mut s = 0.0f32;
            for l in 0..k { s += a.data[i*a.row_stride+l*a.col_stride].to_f32() * b.data[l*b.row_stride+j*b.col_stride].to_f32(); }
            c[i*n+j] = T::from_f32(s);
        } }
    }
}
