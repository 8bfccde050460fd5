// Sorts numbers. It includes no other header of Mezzo.
#ifndef MZ_SORT_H
#define MZ_SORT_H

#include <stddef.h>

void mz_sort(double *x, size_t n);     // in ascending order; x has no NaN
double mz_median(double *x, size_t n); // sorts x; n is at least 1

#endif
